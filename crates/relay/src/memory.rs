//! Memory for requests and replies, of all clients of a front. A host may hold no more of it than
//! it leaves free, so there is always some for another one.

use crate::Peer;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;

#[derive(Debug, Default)]
struct State {
    held: u64,
    by_peer: BTreeMap<Peer, u64>,
    waiting: Vec<Waker>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: u64,
    state: RefCell<State>,
}

impl Memory {
    pub fn new(bytes: u64) -> Rc<Self> {
        Rc::new(Self { bytes, state: RefCell::default() })
    }

    pub fn held(&self) -> u64 {
        self.state.borrow().held
    }

    fn take(&self, peer: Peer, bytes: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let of_peer = state.by_peer.get(&peer).copied().unwrap_or(0) + bytes;
        let left = self.bytes.checked_sub(state.held + bytes);
        let may = left.is_some_and(|left| of_peer <= left);
        if may {
            state.held += bytes;
            state.by_peer.insert(peer, of_peer);
        }
        may
    }

    fn give_back(&self, peer: Peer, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.held -= bytes;
        if let Some(of_peer) = state.by_peer.get_mut(&peer) {
            *of_peer -= bytes;
            if *of_peer == 0 {
                state.by_peer.remove(&peer);
            }
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The memory that one connection holds.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Rc<Memory>,
    peer: Peer,
    held: u64,
}

impl Share {
    pub fn new(memory: &Rc<Memory>, peer: Peer) -> Self {
        Self { memory: Rc::clone(memory), peer, held: 0 }
    }

    /// Takes `bytes` more. Returns `false`, and takes nothing, if they are not free.
    pub fn take(&mut self, bytes: u64) -> bool {
        let may = self.memory.take(self.peer, bytes);
        self.held += if may { bytes } else { 0 };
        may
    }

    pub fn give_back(&mut self, bytes: u64) {
        if bytes > 0 {
            self.held -= bytes;
            self.memory.give_back(self.peer, bytes);
        }
    }

    /// Wakes the task when memory is given back.
    pub fn wait(&self, waker: &Waker) {
        let mut state = self.memory.state.borrow_mut();
        if !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::agent::HostAddress;

    #[test]
    fn greedy_host_leaves_memory_to_others_and_all_of_it_is_returned() {
        let memory = Memory::new(1 << 20);
        let peer = |number| Peer::At(HostAddress::Remote([10, 0, 0, number].into()));
        let mut shares: Vec<Share> = (1..8).map(|n| Share::new(&memory, peer(n))).collect();
        for share in &mut shares {
            while share.take(1 << 10) {}
            assert!(share.held > 0 && memory.held() <= 1 << 20);
        }
        assert_eq!(shares[0].held, 1 << 19);
        let before = memory.held();
        shares[0].give_back(1 << 10);
        assert_eq!(memory.held(), before - (1 << 10));
        shares.clear();
        assert_eq!(memory.held(), 0);
        assert!(memory.state.borrow().by_peer.is_empty());
    }
}
