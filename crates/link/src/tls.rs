//! Mutual TLS 1.3: each side shows a certificate of the cluster's authority, and refuses a peer
//! without one.
//!
//! A node's certificate has its name, as `node-7.evenkeel` (a DNS name). So no node can impersonate
//! another one, neither as a server nor as a leader.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_core::fencing::NodeId;
use evenkeel_tls::{TlsError, pem, provider};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use rustls::{ServerConnection, version};

use crate::LinkError;

/// Files in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificate of this side, and intermediate certificates up to the authority's.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the cluster's authority.
    pub authority: PathBuf,
}

/// TLS configuration of a side.
pub(crate) enum Tls {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>, ServerName<'static>),
}

/// Returns the name in a node's certificate, which its clients check.
///
/// # Errors
/// None in practice: the name is valid for every number.
pub fn server_name(node: NodeId) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(format!("node-{}.evenkeel", node.0))
}

/// Returns whether a certificate names a node.
pub(crate) fn names(certificate: &CertificateDer<'_>, node: NodeId) -> bool {
    let Ok(name) = server_name(node) else { return false };
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
}

fn wrong(file: &Path, problem: impl ToString) -> LinkError {
    LinkError::Tls(TlsError::new(file, problem))
}

impl TlsFiles {
    /// The server has checked the access to the key's file.
    fn key(&self) -> Result<PrivateKeyDer<'static>, LinkError> {
        pem::checked_private_key(&self.key).map_err(LinkError::Tls)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, LinkError> {
        let certificates = pem::certificates(&self.authority).map_err(LinkError::Tls)?;
        pem::roots(&self.authority, certificates).map_err(LinkError::Tls)
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, LinkError> {
        pem::certificates(&self.certificate).map_err(LinkError::Tls)
    }

    /// Returns the configuration of a side that listens.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, LinkError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider())
            .build()
            .map_err(|error| wrong(&self.authority, error))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| wrong(&self.certificate, error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain()?, self.key()?)
            .map_err(|error| wrong(&self.certificate, self.not_a_pair(&error)))?;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of a side that connects. It checks the name [`server_name`].
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, LinkError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| wrong(&self.certificate, error))?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.chain()?, self.key()?)
            .map_err(|error| wrong(&self.certificate, self.not_a_pair(&error)))?;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of a node that listens; its certificate must name it.
    pub(crate) fn server(&self, node: NodeId) -> Result<Tls, LinkError> {
        let config = self.server_config()?;
        let problem = || {
            let text = format!(
                "it is not for this node: others expect the name node-{}.evenkeel; make one for \
                 the number that the node has",
                node.0
            );
            wrong(&self.certificate, text)
        };
        match self.chain()?.first() {
            Some(own) if names(own, node) => Ok(Tls::Server(config)),
            _ => Err(problem()),
        }
    }

    pub(crate) fn client(&self, node: NodeId) -> Result<Tls, LinkError> {
        let name = server_name(node).map_err(|error| wrong(&self.certificate, error))?;
        Ok(Tls::Client(self.client_config()?, name))
    }

    fn not_a_pair(&self, error: &rustls::Error) -> String {
        format!("it cannot be used with the key {}: {error}", self.key.display())
    }
}

impl Tls {
    pub fn connection(&self) -> Result<Connection, rustls::Error> {
        Ok(match self {
            Self::Server(config) => ServerConnection::new(Arc::clone(config))?.into(),
            Self::Client(config, name) => {
                ClientConnection::new(Arc::clone(config), name.clone())?.into()
            }
        })
    }
}
