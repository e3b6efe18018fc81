//! Splits a client's bytes after the handshake into complete requests.

use evenkeel_wire::nbd::transmission::{BadMagic, PayloadTooLarge, REQUEST_BYTES};
use evenkeel_wire::nbd::transmission::{RequestHeader, Terms};
use std::fmt;

/// Memory for a payload before any of it has arrived. It grows with the bytes received.
const PAYLOAD_AT_FIRST: usize = 64 << 10;

/// Why received bytes are no request: the connection is out of step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noise {
    /// They do not begin with a request's magic number.
    Magic(BadMagic),
    /// The payload is larger than the limit.
    Payload(PayloadTooLarge),
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(error) => error.fmt(f),
            Self::Payload(error) => error.fmt(f),
        }
    }
}

/// The part of a request that is arriving.
#[derive(Debug)]
enum State {
    Head {
        bytes: [u8; REQUEST_BYTES],
        length: usize,
    },
    /// A head for whose request there may be no room.
    Waiting(RequestHeader, usize),
    Payload {
        header: RequestHeader,
        payload: Vec<u8>,
        total: usize,
    },
}

/// Result of reading input.
#[derive(Debug)]
pub enum Taken {
    /// All input is taken, and no request is complete.
    Nothing,
    /// There is no room for the next request, and the rest of the input is not taken.
    Full,
    /// A complete request with its payload.
    Request(RequestHeader, Vec<u8>),
}

/// See the module's text.
#[derive(Debug)]
pub struct Intake {
    terms: Terms,
    state: State,
}

const EMPTY: State = State::Head { bytes: [0; REQUEST_BYTES], length: 0 };

impl Intake {
    /// Creates the reader of a connection on these terms.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, state: EMPTY }
    }

    /// Returns whether a part of a request has arrived and there is room for the rest.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        match self.state {
            State::Head { length, .. } => length > 0,
            State::Waiting(..) => false,
            State::Payload { .. } => true,
        }
    }

    /// Returns whether no payload of an incomplete request was taken.
    #[must_use]
    pub fn is_before_payload(&self) -> bool {
        !matches!(self.state, State::Payload { .. })
    }

    /// Returns the bytes of an incomplete request that were taken; `None` if some are payload.
    #[must_use]
    pub fn beginning(&self) -> Option<Vec<u8>> {
        match &self.state {
            State::Head { bytes, length } => Some(bytes[..*length].to_vec()),
            State::Waiting(header, _) => Some(header.encode().to_vec()),
            State::Payload { .. } => None,
        }
    }

    /// Discards the incomplete request. The caller adds [`Self::beginning`] to the input.
    pub fn reset(&mut self) {
        self.state = EMPTY;
    }

    /// Takes input up to the end of the next request. `admit` returns whether there is room.
    ///
    /// # Errors
    /// The connection is out of step.
    pub fn take(
        &mut self,
        input: &mut &[u8],
        mut admit: impl FnMut(&RequestHeader) -> bool,
    ) -> Result<Taken, Noise> {
        loop {
            match &mut self.state {
                State::Head { bytes, length } => {
                    let count = (REQUEST_BYTES - *length).min(input.len());
                    let (front, back) = input.split_at(count);
                    bytes[*length..*length + count].copy_from_slice(front);
                    *length += count;
                    *input = back;
                    if *length < REQUEST_BYTES {
                        return Ok(Taken::Nothing);
                    }
                    let header = RequestHeader::decode(bytes).map_err(Noise::Magic)?;
                    let payload = header.payload_bytes(&self.terms).map_err(Noise::Payload)?;
                    self.state = State::Waiting(header, payload as usize);
                }
                State::Waiting(header, total) => {
                    if !admit(header) {
                        return Ok(Taken::Full);
                    }
                    let payload = Vec::with_capacity((*total).min(PAYLOAD_AT_FIRST));
                    self.state = State::Payload { header: *header, payload, total: *total };
                }
                State::Payload { header, payload, total } => {
                    let count = (*total - payload.len()).min(input.len());
                    let (front, back) = input.split_at(count);
                    payload.extend_from_slice(front);
                    *input = back;
                    if payload.len() < *total {
                        return Ok(Taken::Nothing);
                    }
                    let request = Taken::Request(*header, std::mem::take(payload));
                    self.state = EMPTY;
                    return Ok(request);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::nbd::constants::command;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const TERMS: Terms = Terms {
        size_bytes: 1 << 30,
        block_bytes_min: 1,
        payload_bytes_max: 1 << 25,
        read_only: false,
        structured_replies: true,
        base_allocation: true,
    };

    proptest! {
        #[test]
        fn requests_are_read_the_same_in_any_pieces_and_with_any_waits(
            asked in vec((0..5_u16, 0..3_000_u32), 1..20),
            pieces in vec(1..2_000_usize, 1..20),
            room in vec(any::<bool>(), 1..20),
        ) {
            let mut expected = Vec::new();
            let mut bytes = Vec::new();
            for (cookie, (command, length)) in (0..).zip(asked) {
                let flags = cookie as u16 & 1;
                let offset = cookie * 512;
                let header = RequestHeader { flags, command, cookie, offset, length };
                let writes = if command == command::WRITE { length } else { 0 };
                let payload: Vec<u8> = (0..writes).map(|number| number as u8).collect();
                bytes.extend(header.encode());
                bytes.extend(&payload);
                expected.push((header, payload));
            }
            let mut intake = Intake::new(TERMS);
            let mut got = Vec::new();
            let mut room = room.iter().cycle();
            let mut offset = 0;
            let mut pieces = pieces.iter().cycle();
            while offset < bytes.len() {
                let end = bytes.len().min(offset + pieces.next().unwrap());
                let mut input = &bytes[offset..end];
                let mut refused = 0;
                loop {
                    // There is room after a few attempts.
                    match intake.take(&mut input, |_| *room.next().unwrap() || refused > 5) {
                        Ok(Taken::Nothing) => break,
                        Ok(Taken::Full) => refused += 1,
                        Ok(Taken::Request(header, payload)) => got.push((header, payload)),
                        Err(noise) => panic!("{noise}"),
                    }
                }
                prop_assert!(input.is_empty());
                offset = end;
            }
            // A request without payload is complete as soon as there is room.
            prop_assert!(!intake.is_owed());
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn noise_is_an_error_and_does_not_panic(noise in vec(any::<u8>(), 28..100)) {
            let mut input = &noise[..];
            let taken = Intake::new(TERMS).take(&mut input, |_| true);
            prop_assert!(matches!(taken, Err(Noise::Magic(_))));
        }
    }
}
