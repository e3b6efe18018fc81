//! The names under which clients reach the API, as they send them in the `Host` header.
//!
//! A page in a browser may resolve a name of its own to this machine, and so read `/metrics`. And a
//! request that was signed for one server is valid at another with the same keys. So `Host` is
//! compared: on loopback always, elsewhere if the operator has named the hosts.

use std::net::IpAddr;

/// The names of this server.
#[derive(Debug)]
pub struct Hosts {
    /// Names set by the operator, in lower case.
    named: Vec<String>,
    /// The machine's own name.
    machine: String,
}

impl Hosts {
    /// Creates the list of these names and those of this machine.
    pub fn new(named: &[String]) -> Self {
        let named = named.iter().map(|name| plain(name)).collect();
        let machine = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        Self { named, machine }
    }

    /// Returns whether a request with this `Host` that arrived at the address `local` is for this
    /// server.
    pub fn is_ours(&self, local: IpAddr, host: &str) -> bool {
        let host = plain(host);
        let address = host.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        if self.named.contains(&host) || address == Some(local.to_canonical()) {
            return true;
        }
        if local.to_canonical().is_loopback() {
            let is_here = match address {
                Some(ip) => ip.is_loopback(),
                None => host == "localhost" || host.ends_with(".localhost") || host == self.machine,
            };
            // An address in `Host` is no name that a page has resolved. It differs from the local
            // one if a port is forwarded.
            return is_here || (self.named.is_empty() && address.is_some());
        }
        self.named.is_empty()
    }
}

/// Returns a host without its port, brackets and final dot, in lower case.
fn plain(host: &str) -> String {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        // Two colons are in an IPv6 address only.
        None if host.matches(':').count() > 1 => host,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(named: &[&str]) -> Hosts {
        let named = named.iter().map(|name| plain(name)).collect();
        Hosts { named, machine: "box".into() }
    }

    #[track_caller]
    fn check(hosts: &Hosts, local: &str, ours: &[&str], others: &[&str]) {
        let local = local.parse().unwrap();
        ours.iter().for_each(|host| assert!(hosts.is_ours(local, host), "{host}"));
        others.iter().for_each(|host| assert!(!hosts.is_ours(local, host), "{host}"));
    }

    #[test]
    fn loopback_is_reached_under_names_of_this_machine_only() {
        let here =
            ["localhost:8650", "127.0.0.1:8650", "[::1]:8650", "LOCALHOST", "box", "a.localhost"];
        let others = ["evil.example:8650", "", "localhost.evil.example", "box.evil.example"];
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.0.1.1"] {
            check(&hosts(&[]), local, &here, &others);
            check(&hosts(&["api.example"]), local, &here, &others);
        }
        check(&hosts(&[]), "127.0.0.1", &["192.0.2.1:80"], &[]);
        let named = hosts(&["api.example", "192.0.2.1"]);
        check(&named, "127.0.0.1", &["api.example.:443", "192.0.2.1"], &["192.0.2.2:80"]);
    }

    #[test]
    fn non_loopback_hosts_are_limited_to_configured_names_if_any() {
        check(&hosts(&[]), "192.0.2.1", &["any.example", "192.0.2.9"], &[]);
        let named = hosts(&["API.example", "2001:db8::1"]);
        let ours = ["api.example:8650", "192.0.2.1:8650", "[2001:db8::1]:8650"];
        check(&named, "192.0.2.1", &ours, &["localhost", "127.0.0.1", "192.0.2.2", "b.example"]);
    }
}
