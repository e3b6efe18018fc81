/// The agent of a test's engine: over TCP and TLS. Included by the engine's own tests.
pub fn reached(agent: Arc<dyn Agent>, folder: &Path) -> Arc<dyn Agent> {
    Arc::new(crate::link::Linked::over_tls(agent, folder))
}
