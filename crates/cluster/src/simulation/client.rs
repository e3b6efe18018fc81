//! A client of one volume: it has several open requests, sends them again at the volume's new home,
//! and checks the values that it reads.

use evenkeel_core::random::Random;

use super::Broken;
use super::ceph::OBJECTS;

/// Maximum number of open requests of a client.
const UNDER_WAY_MAX: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A read, which must return at least this value.
    Read {
        at_least: u64,
    },
    Write(u64),
}

/// A request in a node's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub id: u64,
    pub connection: u64,
    pub object: usize,
    pub wanted: Wanted,
}

/// The connection of a client to the volume's home.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub id: u64,
    /// Whether the home has accepted it.
    pub is_open: bool,
    /// The node whose front accepted it.
    pub front: usize,
    /// The node that serves the volume.
    pub home: usize,
}

/// A client.
#[derive(Default)]
pub struct Client {
    pub connection: Option<Connection>,
    pub under_way: Vec<Request>,
    connections: u64,
    requests: u64,
    /// By object: the last submitted write, and the minimum that a read may return.
    written: [u64; OBJECTS],
    known: [u64; OBJECTS],
}

impl Client {
    /// Creates a request for the present connection, if there is room for one.
    pub fn begin(&mut self, random: &mut Random) -> Option<Request> {
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let object = usize::try_from(random.below(OBJECTS as u64)).unwrap();
        let is_written =
            |it: &Request| it.object == object && matches!(it.wanted, Wanted::Write(_));
        // The order of two concurrent writes of one block is undefined.
        if random.one_in(3) || self.under_way.iter().any(is_written) {
            return self.read(object);
        }
        let value = self.written[object] + 1;
        let request = self.add(object, Wanted::Write(value))?;
        self.written[object] = value;
        Some(request)
    }

    pub fn read(&mut self, object: usize) -> Option<Request> {
        self.add(object, Wanted::Read { at_least: self.known[object] })
    }

    fn add(&mut self, object: usize, wanted: Wanted) -> Option<Request> {
        let connection = self.connection.as_ref().filter(|connection| connection.is_open)?.id;
        self.requests += 1;
        let request = Request { id: self.requests, connection, object, wanted };
        self.under_way.push(request);
        Some(request)
    }

    /// Begins a connection. Returns its number.
    pub fn connect(&mut self, front: usize, home: usize) -> u64 {
        self.connections += 1;
        let id = self.connections;
        self.connection = Some(Connection { id, is_open: false, front, home });
        id
    }

    /// Opens the connection. Returns the open requests in order, to be sent again.
    pub fn resend(&mut self) -> Vec<Request> {
        let Some(connection) = &mut self.connection else { return Vec::new() };
        connection.is_open = true;
        let id = connection.id;
        self.under_way.iter_mut().for_each(|request| request.connection = id);
        self.under_way.clone()
    }

    /// Returns whether a connection is the present one.
    pub fn has(&self, connection: u64) -> bool {
        self.connection.as_ref().is_some_and(|it| it.id == connection)
    }

    /// Handles an answer over a connection. Ignores one over a closed connection. Returns whether
    /// it was the first answer, and the rule that it breaks.
    pub fn answered(&mut self, id: u64, connection: u64, value: u64) -> (bool, Option<Broken>) {
        let position = self.under_way.iter().position(|request| request.id == id);
        let Some(position) = position.filter(|_| self.has(connection)) else {
            return (false, None);
        };
        let Request { object, wanted, .. } = self.under_way.remove(position);
        let (value, is_wrong) = match wanted {
            Wanted::Write(value) => (value, false),
            Wanted::Read { at_least } => (value, value < at_least || value > self.written[object]),
        };
        self.known[object] = self.known[object].max(value);
        (true, is_wrong.then_some(Broken::WrongRead))
    }
}
