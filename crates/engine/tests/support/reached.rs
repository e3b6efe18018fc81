/// The agent of a test's engine: in the same process.
pub fn reached(agent: Arc<dyn Agent>, _folder: &Path) -> Arc<dyn Agent> {
    agent
}
