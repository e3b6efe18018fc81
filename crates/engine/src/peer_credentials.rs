//! Access to the unix socket by user: the kernel states the user of the peer process.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Groups of one process that are checked. Linux allows 65,536; users have tens.
const GROUPS_MAX: usize = 1_024;

/// Root, which can become any other user anyway.
const ROOT: u32 = 0;

/// Access to the unix socket beside the server's own user and root; by default, no other user has
/// any.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnixAccess {
    /// These users.
    pub users: Vec<u32>,
    /// The members of this group; the socket's group, too.
    pub group: Option<u32>,
}

impl UnixAccess {
    /// Returns the mode of the socket's file: as narrow as possible, since the kernel checks it
    /// first.
    #[must_use]
    pub fn mode(&self) -> u32 {
        match (self.users.is_empty(), self.group) {
            (true, None) => 0o600,
            (true, Some(_)) => 0o660,
            // A file has one owner. So every user may connect, and the server checks the user
            // afterwards.
            (false, _) => 0o666,
        }
    }

    /// Returns whether a process of this user and these groups has access.
    fn allows(&self, user: u32, groups: &[u32]) -> bool {
        let own = rustix::process::geteuid().as_raw();
        user == own
            || user == ROOT
            || self.users.contains(&user)
            || self.group.is_some_and(|group| groups.contains(&group))
    }

    /// Returns whether the process at the other end of a unix socket has access.
    ///
    /// # Errors
    /// The inner error is the user id of a process without access.
    pub fn check(&self, socket: impl AsFd) -> io::Result<Result<(), u32>> {
        let who = socket_peercred(socket.as_fd())?;
        let user = who.uid.as_raw();
        let mut groups = match self.group {
            Some(_) => more_groups(socket.as_fd())?,
            None => Vec::new(),
        };
        groups.push(who.gid.as_raw());
        Ok(if self.allows(user, &groups) { Ok(()) } else { Err(user) })
    }
}

/// Returns the supplementary groups of the process at the other end.
fn more_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS_MAX];
    let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes there, and says how many it has written.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        // The process has more groups than that, or the kernel is older than 4.13: only its first
        // group counts.
        return match error.raw_os_error() {
            Some(libc::ERANGE | libc::ENOPROTOOPT) => Ok(Vec::new()),
            _ => Err(error),
        };
    }
    groups.truncate(bytes as usize / size_of::<u32>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn user_that_is_not_named_is_refused() {
        let own = rustix::process::geteuid().as_raw();
        let nobody = UnixAccess::default();
        let some = UnixAccess { users: vec![1_001, 1_002], group: Some(2_000) };
        // User, groups, whether by default, whether with the settings above.
        let cases = [
            (own, &[][..], true, true),
            (ROOT, &[], true, true),
            (1_001, &[1_001], false, true),
            (1_003, &[1_003], false, false),
            (1_003, &[1_003, 2_000], false, true),
            (1_003, &[1_002, 2_001], false, false),
        ];
        for (user, groups, by_default, with_settings) in cases {
            assert_eq!(nobody.allows(user, groups), by_default, "{user} {groups:?}");
            assert_eq!(some.allows(user, groups), with_settings, "{user} {groups:?}");
        }
    }

    #[test]
    fn credentials_of_a_peer_come_from_the_kernel() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let access = UnixAccess { users: vec![], group: Some(u32::MAX - 1) };
        assert_eq!(access.check(&ours).unwrap(), Ok(()), "our own user");
        let groups = more_groups(&ours).unwrap();
        let known = rustix::process::getgroups().unwrap();
        assert_eq!(groups, known.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
    }

    #[test]
    fn the_mode_is_as_narrow_as_it_may_be() {
        let access = |users: &[u32], group| UnixAccess { users: users.to_vec(), group }.mode();
        assert_eq!(access(&[], None), 0o600);
        assert_eq!(access(&[], Some(7)), 0o660);
        assert_eq!((access(&[7], None), access(&[7], Some(7))), (0o666, 0o666));
    }
}
