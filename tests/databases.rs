//! Databases on a file system on a volume whose server is killed at any moment. Afterwards each row
//! of an answered commit exists unchanged, and no transaction exists partially.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::PATIENCE;
use support::bench::open_folder;
use support::ceph::Cluster;
use support::clock::{Deadline, pass};
use support::databases::{Database, Place, Session};
use support::etcd::Etcd;
use support::file_system::{FileSystem, Kind, has_no_mounts};
use support::machine;
use support::random::{Random, seed_of};
use support::server::Server;
use support::tools::absent;

/// Least number of answered transactions before the server is killed.
const ANSWERED_MIN: u64 = 10;
/// A writer's transactions from one checkpoint of the database to the next.
const CHECKPOINT_EVERY: u64 = 50;
/// Begins with its write-ahead log, and changes the way of commits with each kill.
const SQLITE: Database = Database::Sqlite { has_log: true };
/// Maximum number of rows of a transaction.
const ROWS_MAX: u64 = 6;

/// A thread that makes one transaction after the other. Its rows follow from the transaction's
/// number.
struct Writer {
    number: u64,
    /// The last one that was answered.
    answered: AtomicU64,
}

impl Writer {
    /// Returns the rows of a transaction, as they are in the table.
    fn rows(&self, transaction: u64) -> Vec<String> {
        let first = (self.number << 32 | transaction) * ROWS_MAX;
        let mut random = Random::new(first);
        let row = |id: u64, random: &mut Random| {
            let count = usize::try_from(random.below(1_200)).expect("small");
            let bytes = random.bytes(count);
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{id}|{digits}")
        };
        let count = 1 + random.below(ROWS_MAX);
        (first..first + count).map(|id| row(id, &mut random)).collect()
    }

    /// Returns the statements of a transaction.
    fn statements(&self, transaction: u64) -> String {
        let rows = self.rows(transaction);
        let values: Vec<String> =
            rows.iter().map(|row| format!("({}')", row.replace('|', ",'"))).collect();
        format!(
            "BEGIN; INSERT INTO kept VALUES {}; UPDATE newest SET made = {transaction} WHERE \
             writer = {}; COMMIT;",
            values.join(","),
            self.number
        )
    }

    /// Makes transactions until one fails; gives up after some time, in case the test has failed.
    fn write(&self, database: Database, mut session: Session) {
        let deadline = Deadline::after(2 * PATIENCE);
        while !deadline.left().is_zero() {
            let next = self.answered.load(Ordering::SeqCst) + 1;
            if session.ask(&self.statements(next)).is_none() {
                return;
            }
            self.answered.store(next, Ordering::SeqCst);
            if next.is_multiple_of(CHECKPOINT_EVERY) && session.ask(database.checkpoint()).is_none()
            {
                return;
            }
        }
    }
}

/// A database on a file system on a volume.
struct World {
    // In the order in which they must be dropped.
    file_system: FileSystem,
    server: Server,
    volume: String,
    place: Place,
    writers: Vec<Writer>,
    random: Random,
    _folder: tempfile::TempDir,
}

impl World {
    #[track_caller]
    fn new(database: Database, kind: Kind, seed: u64) -> Self {
        let server = Server::start("");
        let volume = server.attached("--type io2 --size 8 --iops 8000");
        // PostgreSQL runs as another user.
        let folder = open_folder();
        let file_system = FileSystem::make(kind, folder.path(), &server, &volume);
        let data = file_system.path().join("data");
        let place = Place { data, socket: folder.path().join("socket") };
        let random = Random::new(seed);
        let writers = writers(database, &place);
        Self { file_system, server, volume, place, writers, random, _folder: folder }
    }

    /// Kills the server during writes to the database, at a moment that the seed decides.
    #[track_caller]
    fn killed_under_writers(&mut self, database: Database) {
        let served = database.start(&self.place);
        let before = answered(&self.writers);
        let delays = [self.random.below(600), self.random.below(200)].map(Duration::from_millis);
        std::thread::scope(|scope| {
            for writer in &self.writers {
                let session = database.session(&self.place);
                scope.spawn(move || writer.write(database, session));
            }
            let is_busy = || answered(&self.writers) >= before + ANSWERED_MIN;
            Deadline::after(PATIENCE).ask("answered commits", is_busy);
            pass(delays[0]);
            self.server.kill_9();
            // It may detect that its disk is gone, or end with it.
            pass(delays[1]);
            served.kill();
        });
        self.file_system.lose();
    }

    /// Kills the server while the database recovers.
    #[track_caller]
    fn killed_in_recovery(&mut self, database: Database) {
        self.recover();
        let delay = Duration::from_millis(self.random.below(150));
        let served = database.launch(&self.place);
        let mut client = database.client(&self.place);
        client.begin("SELECT count(*) FROM kept;");
        pass(delay);
        self.server.kill_9();
        drop(client);
        served.kill();
        self.file_system.lose();
    }

    #[track_caller]
    fn recover(&mut self) {
        self.server.restart();
        self.file_system.recover(&self.server, &self.volume);
    }

    #[track_caller]
    fn check(&self, database: Database) {
        check(database, &self.place, &self.writers);
    }
}

/// Creates an empty database, and its writers.
#[track_caller]
fn writers(database: Database, place: &Place) -> Vec<Writer> {
    let writer = |number| Writer { number, answered: AtomicU64::new(0) };
    let writers: Vec<Writer> = (1..=database.sessions()).map(writer).collect();
    database.make(place);
    let served = database.start(place);
    let mut session = database.session(place);
    session.rows("CREATE TABLE kept (id BIGINT PRIMARY KEY, data TEXT);");
    session.rows("CREATE TABLE newest (writer BIGINT PRIMARY KEY, made BIGINT);");
    for Writer { number, .. } in &writers {
        session.rows(&format!("INSERT INTO newest VALUES ({number}, 0);"));
    }
    drop(session);
    served.kill();
    writers
}

/// Returns the number of answered transactions.
fn answered(writers: &[Writer]) -> u64 {
    writers.iter().map(|writer| writer.answered.load(Ordering::SeqCst)).sum()
}

/// Checks that answered transactions exist, and none partially.
#[track_caller]
fn check(database: Database, place: &Place, writers: &[Writer]) {
    let served = database.start(place);
    let mut session = database.session(place);
    let (question, sound) = database.integrity();
    let told = session.rows(question);
    assert!(told.last().is_some_and(|last| last.ends_with(sound)), "{told:?}");
    let rows = session.rows("SELECT id, data FROM kept ORDER BY id;");
    let newest = session.rows("SELECT made FROM newest ORDER BY writer;");
    let mut found = rows.iter();
    for (writer, newest) in writers.iter().zip(newest) {
        let number = writer.number;
        let answered = writer.answered.load(Ordering::SeqCst);
        let newest: u64 = newest.parse().expect("a number");
        assert!(
            (answered..=answered + 1).contains(&newest),
            "writer {number}: {answered} transactions were answered, {newest} are there"
        );
        for transaction in 1..=newest {
            for expected in writer.rows(transaction) {
                let row = found.next().map(String::as_str);
                let is_there = row == Some(&expected);
                assert!(
                    is_there,
                    "writer {number}, transaction {transaction} of {newest}: expected \
                     {expected}, found {row:?}"
                );
            }
        }
        writer.answered.store(newest, Ordering::SeqCst);
    }
    assert_eq!(found.next(), None, "rows that nobody wrote");
    drop(session);
    served.kill();
}

/// Kills the server of a database's volume this number of times, half of them on each file system.
fn survives_kills(database: Database, rounds: u64, test: &str) {
    if has_no_mounts() || database.is_absent() {
        return;
    }
    let _mounts = machine::mounts();
    let seed = seed_of(&format!("databases -- {test} --exact --include-ignored"));
    for kind in [Kind::Ext4, Kind::Xfs] {
        let _turn = machine::beside_others();
        let mut world = World::new(database, kind, seed ^ kind as u64);
        for round in 0..rounds / 2 {
            println!("{database:?} on {kind:?}, round {round}");
            // In the state that the other way has left.
            let is_first_way = (kind as u64 + round).is_multiple_of(2);
            let database = if is_first_way { database } else { database.other_way() };
            world.killed_under_writers(database);
            if world.random.below(3) == 0 {
                world.killed_in_recovery(database);
            }
            world.recover();
            world.check(database);
        }
        println!("{} transactions", answered(&world.writers));
    }
}

#[test]
fn sqlite_keeps_every_committed_row() {
    survives_kills(SQLITE, 2, "sqlite_keeps_every_committed_row");
}

#[test]
fn postgresql_keeps_every_committed_row() {
    survives_kills(Database::PostgreSql, 2, "postgresql_keeps_every_committed_row");
}

#[test]
#[ignore = "full: tests/databases.rs::postgresql_keeps_every_committed_row stays"]
fn mariadb_keeps_every_committed_row() {
    survives_kills(Database::MariaDb, 2, "mariadb_keeps_every_committed_row");
}

#[test]
#[ignore = "full: tests/databases.rs::sqlite_keeps_every_committed_row stays"]
fn sqlite_keeps_every_committed_row_through_20_kills() {
    survives_kills(SQLITE, 20, "sqlite_keeps_every_committed_row_through_20_kills");
}

#[test]
#[ignore = "full: tests/databases.rs::postgresql_keeps_every_committed_row stays"]
fn postgresql_keeps_every_committed_row_through_20_kills() {
    survives_kills(
        Database::PostgreSql,
        20,
        "postgresql_keeps_every_committed_row_through_20_kills",
    );
}

#[test]
#[ignore = "full: tests/databases.rs::postgresql_keeps_every_committed_row stays"]
fn mariadb_keeps_every_committed_row_through_20_kills() {
    survives_kills(Database::MariaDb, 20, "mariadb_keeps_every_committed_row_through_20_kills");
}

/// Kills the home of the volume while the database commits. The database waits, gets no error, and
/// continues after the takeover by another node.
#[track_caller]
fn outlives_its_node(database: Database, place: &Place, writers: &[Writer], home: &mut Server) {
    let served = database.start(place);
    let more = |before: u64| {
        let is_busy = || answered(writers) >= before + ANSWERED_MIN;
        Deadline::after(PATIENCE).ask("answered commits", is_busy);
    };
    std::thread::scope(|scope| {
        for writer in writers {
            let session = database.session(place);
            scope.spawn(move || writer.write(database, session));
        }
        more(answered(writers));
        home.kill_9();
        let killed_at = answered(writers);
        more(killed_at + writers.len() as u64);
        // The database is killed, too, and so has to recover from its log.
        served.kill();
    });
}

/// The database is on a volume of a cluster, mounted through a node that is not killed. The node
/// that serves the volume is killed ten times.
#[test]
#[ignore = "full: tests/databases.rs::postgresql_keeps_every_committed_row stays"]
fn postgresql_keeps_every_committed_row_on_a_cluster_whose_nodes_are_killed() {
    let database = Database::PostgreSql;
    if has_no_mounts() || database.is_absent() || absent(&["etcd", "etcdctl"]) {
        return;
    }
    let _mounts = machine::mounts();
    let _turn = machine::beside_others();
    let folder = open_folder();
    let Some(ceph) = Cluster::start(folder.path()) else { return };
    let etcd = Etcd::start(folder.path());
    let node = |name| {
        let store = ceph.store();
        let etcd = etcd.endpoint();
        Server::start(&format!("{store} --no-guarantee --etcd {etcd} --node {name}"))
    };
    let here = node("here");
    let mut others = ["first", "second"].map(node);
    let volume = here.attached("--type io2 --size 8 --iops 8000");
    let mut file_system = FileSystem::make_at(Kind::Ext4, folder.path(), &here.tcp_uri(&volume));
    let data = file_system.path().join("data");
    let place = Place { data, socket: folder.path().join("socket") };
    let writers = writers(database, &place);
    for (round, at) in (0..10).zip([0, 1].into_iter().cycle()) {
        println!("kill {round}, {} transactions", answered(&writers));
        let verb = format!("node move {volume} {}", ["first", "second"][at]);
        let moves = || here.evenkeel(&verb).status.success();
        Deadline::after(PATIENCE).ask("the volume's move to the node to be killed", moves);
        outlives_its_node(database, &place, &writers, &mut others[at]);
        check(database, &place, &writers);
        others[at].restart();
    }
    // Through another node, which has never used the file system.
    file_system.lose();
    file_system.recover_at(&others[0].tcp_uri(&volume));
    check(database, &place, &writers);
}
