//! Reads units of a snapshot, in ascending order, through the server.

use crate::Client;
use crate::direct::{Blocks, Listed};
use crate::output::Failure;
use evenkeel_wire::aws::checksum::Digest;
use std::collections::VecDeque;

/// Tokens that are listed at once: few, so that the reader may take as long as it does.
const TOKENS: u32 = 100;

/// A reader of a snapshot.
pub struct Reader<'a> {
    client: &'a Client,
    snapshot: &'a str,
    /// Only units that differ from those of this one are asked for.
    older: Option<&'a str>,
    tokens: VecDeque<(u64, Option<String>)>,
}

impl<'a> Reader<'a> {
    pub fn new(client: &'a Client, snapshot: &'a str, older: Option<&'a str>) -> Self {
        Self { client, snapshot, older, tokens: VecDeque::new() }
    }

    /// A reader that knows the tokens of some units.
    pub fn knowing(
        client: &'a Client,
        snapshot: &'a str,
        tokens: &[(u64, Option<String>)],
    ) -> Self {
        let tokens: Blocks = tokens.to_vec();
        Self { client, snapshot, older: None, tokens: tokens.into() }
    }

    /// The bytes of a unit and their checksum; `None` if it has no data.
    pub fn read(&mut self, unit: u64) -> Result<Option<(Vec<u8>, Digest)>, Failure> {
        while self.tokens.front().is_some_and(|(number, _)| *number < unit) {
            self.tokens.pop_front();
        }
        if self.tokens.is_empty() {
            let first = Listed::first(unit);
            let page = self.client.listed(self.snapshot, self.older, &first, TOKENS)?;
            self.tokens = page.blocks.into();
        }
        match self.tokens.front() {
            Some((number, Some(token))) if *number == unit => {
                self.client.block(self.snapshot, unit, token).map(Some)
            }
            _ => Ok(None),
        }
    }
}
