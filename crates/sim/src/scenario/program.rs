//! Programs of a desktop benchmark: what a client of a scenario stands for where it is run
//! live on a file system.
//!
//! In virtual time, and without a file system, the client's batch of requests is what reaches the
//! volume of such a program. `crates/lab/src/bench/desktop.rs` runs the programs themselves.
//!
//! sysbench's file test and fio on files are of another kind: they last as long as their client,
//! and their requests are the client's, whether there is a file system or not.

/// A test, or what must be laid out before one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// A file written from begin to end; calls are MiB.
    IozoneWrite,
    /// The same file, read from begin to end; calls are MiB.
    IozoneRead,
    /// The file of the file server, written; calls are MiB.
    FileServerLayout,
    /// Random reads and writes of 512 bytes to 64 KiB, 64 under way; calls are MiB of its file.
    FileServer,
    /// Rows inserted, each a transaction; calls are rows.
    Sqlite,
    /// Files of 1 MiB, each flushed before it is closed; calls are files.
    FsMark,
    /// The 32 files of the two tests that follow, written; calls are KiB of each.
    ThreadedLayout,
    /// 32 threads write 4 KiB anywhere in a file each, and flush it; calls are those of each.
    ThreadedWrite,
    /// 32 threads read 4 KiB anywhere in a file each, past the page cache; calls are those of each.
    ThreadedRead,
    /// The same, from the page cache; calls are the first blocks of each file that are read, again
    /// and again for a fixed time.
    ThreadedCached,
    /// IOMelt's file, read from begin to end; calls are reads.
    MeltRead,
    /// Anywhere in it, read; calls are reads.
    MeltReread,
    /// The same, and nothing is read ahead; calls are reads.
    MeltRereadAlone,
    /// Anywhere in it, read or written as a coin falls; calls are both.
    MeltMixed,
    /// Random writes of 64 KiB that nobody waits for; calls are MiB.
    AioStress,
    /// Clients of a file server, for the seconds that are said; calls are clients.
    Dbench,
    /// Small files of a mail server, as the page cache has them; calls are transactions.
    Postmark,
    /// A file of zeros, compressed; calls are MiB.
    Gzip,
    /// Ten trees of sources, made and flushed; calls are sources of each.
    TreesCreate,
    /// Objects of those, written in no order and flushed; calls are as before.
    TreesCompile,
    /// Sources and objects, read from the page cache; calls are as before.
    TreesRead,
    /// A tree of sources out of its archive; calls are sources.
    Unpack,
    /// A web server that is asked for one page; calls are requests.
    Apache,
    /// sysbench's file test for the time of its client; calls are files.
    Sysbench,
    /// fio on files for the time of its client; calls are files.
    Fio,
    /// Transactions on a PostgreSQL, at a share of the most that it does; calls are percent. Its
    /// load says what of it reaches the volume. The other clients of the same volume are the
    /// database's log and a batch job on it.
    Pgbench,
    /// The same on a MariaDB, by sysbench.
    SysbenchOltp,
    /// Transactions one after the other on a PostgreSQL of their own; calls are transactions.
    PgbenchBatch,
}

/// A database that a program needs, one of its own on a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, with InnoDB.
    MariaDb,
}

impl Engine {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
        }
    }
}

/// A program, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramSetup {
    /// Which.
    pub program: Program,
    /// How much it does, in its own unit.
    pub calls: u64,
    /// How long it goes on, in seconds; 0 where it ends when it is done, or with its client.
    pub seconds: u64,
}

impl Program {
    /// Every program by the word that scenarios use.
    pub const WORDS: [(&'static str, Self); 28] = [
        ("iozone-write", Self::IozoneWrite),
        ("iozone-read", Self::IozoneRead),
        ("file-server-layout", Self::FileServerLayout),
        ("file-server", Self::FileServer),
        ("sqlite", Self::Sqlite),
        ("fs-mark", Self::FsMark),
        ("threaded-layout", Self::ThreadedLayout),
        ("threaded-write", Self::ThreadedWrite),
        ("threaded-read", Self::ThreadedRead),
        ("threaded-cached", Self::ThreadedCached),
        ("iomelt-read", Self::MeltRead),
        ("iomelt-reread", Self::MeltReread),
        ("iomelt-reread-alone", Self::MeltRereadAlone),
        ("iomelt-mixed", Self::MeltMixed),
        ("aio-stress", Self::AioStress),
        ("dbench", Self::Dbench),
        ("postmark", Self::Postmark),
        ("gzip", Self::Gzip),
        ("trees-create", Self::TreesCreate),
        ("trees-compile", Self::TreesCompile),
        ("trees-read", Self::TreesRead),
        ("unpack", Self::Unpack),
        ("apache", Self::Apache),
        ("sysbench", Self::Sysbench),
        ("fio", Self::Fio),
        ("pgbench", Self::Pgbench),
        ("sysbench-oltp", Self::SysbenchOltp),
        ("pgbench-batch", Self::PgbenchBatch),
    ];

    /// The programs that do it, by their names; fio and our own stand in for those that are not to
    /// be had.
    #[must_use]
    pub const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Sqlite => &["sqlite3"],
            Self::FsMark => &["fs_mark"],
            Self::Dbench => &["dbench"],
            Self::Postmark => &["postmark"],
            Self::Gzip => &["gzip"],
            Self::TreesCreate | Self::TreesCompile | Self::TreesRead => &[],
            Self::Unpack => &["bzip2", "tar"],
            Self::Apache => &["ab", "apache2"],
            Self::Sysbench => &["sysbench"],
            Self::Pgbench | Self::PgbenchBatch => &["pgbench", "postgres"],
            Self::SysbenchOltp => &["mariadbd", "sysbench"],
            _ => &["fio"],
        }
    }

    /// The database that must run beside it, if it needs one.
    #[must_use]
    pub const fn engine(self) -> Option<Engine> {
        match self {
            Self::Pgbench | Self::PgbenchBatch => Some(Engine::Postgres),
            Self::SysbenchOltp => Some(Engine::MariaDb),
            _ => None,
        }
    }

    /// Whether it is transactions at a share of the most that a database does.
    #[must_use]
    pub const fn is_transactions(self) -> bool {
        matches!(self, Self::Pgbench | Self::SysbenchOltp)
    }

    /// Whether it lasts as long as its client does, and makes the client's requests; else it is a
    /// batch.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Sysbench | Self::Fio)
    }

    /// Whether its command line must say how long it runs.
    #[must_use]
    pub const fn needs_seconds(self) -> bool {
        matches!(self, Self::Dbench)
    }

    /// Whether it is a pass of IOMelt, which needs the file that the passes that write leave.
    #[must_use]
    pub const fn is_of_iomelt(self) -> bool {
        matches!(self, Self::MeltRead | Self::MeltReread | Self::MeltRereadAlone | Self::MeltMixed)
    }

    /// Whether it runs live on a file system or not at all: the page cache of a kernel answers
    /// it, or its client binds it as much as its volume. Nothing stands in for that in virtual
    /// time. Such a client says how much its program counts itself.
    #[must_use]
    pub const fn is_live_only(self) -> bool {
        self.is_of_iomelt()
            || matches!(
                self,
                Self::ThreadedCached
                    | Self::AioStress
                    | Self::Dbench
                    | Self::Postmark
                    | Self::Gzip
                    | Self::TreesCreate
                    | Self::TreesCompile
                    | Self::TreesRead
                    | Self::Unpack
                    | Self::Apache
            )
    }

    /// Whether its client binds it as much as its volume, live: a slower processor is a slower
    /// program.
    #[must_use]
    pub const fn is_bound_by_client(self) -> bool {
        self.is_live_only() || matches!(self, Self::PgbenchBatch)
    }

    /// What it counts, in the plural, where that is not requests to its volume.
    #[must_use]
    pub const fn unit(self) -> Option<&'static str> {
        match self {
            Self::MeltRead | Self::MeltReread | Self::MeltRereadAlone | Self::MeltMixed => {
                Some("calls")
            }
            Self::ThreadedCached => Some("blocks"),
            Self::AioStress | Self::Gzip => Some("MiB"),
            Self::Dbench | Self::TreesCreate | Self::TreesCompile | Self::TreesRead => Some("MB"),
            Self::Postmark => Some("transactions"),
            Self::Unpack => Some("files"),
            Self::Apache => Some("pages"),
            _ => None,
        }
    }

    /// Whether it is known what of it reaches the volume, so that its requests can be made without
    /// it.
    #[must_use]
    pub const fn is_of_requests(self) -> bool {
        !self.is_live_only() && self.engine().is_none()
    }

    /// Whether it is the published program itself, or one in its manner.
    #[must_use]
    pub const fn manner(self) -> &'static str {
        match self {
            Self::FileServer => "the published job of fio",
            Self::Sqlite => "sqlite3 itself",
            Self::FsMark => "fs_mark itself",
            Self::Dbench => "dbench itself",
            Self::Postmark => "postmark itself",
            Self::Gzip => "gzip itself",
            Self::TreesCreate | Self::TreesCompile | Self::TreesRead => {
                "in the manner of Compile Bench, on trees that are drawn"
            }
            Self::Unpack => "tar and bzip2 themselves, on a tree that is drawn",
            Self::Apache => "Apache and ab themselves",
            Self::Sysbench => "sysbench itself",
            Self::Fio => "fio itself",
            Self::Pgbench | Self::PgbenchBatch => "pgbench itself, on PostgreSQL",
            Self::SysbenchOltp => "sysbench itself, on MariaDB",
            Self::AioStress => "in the manner of AIO-Stress, by fio",
            Self::FileServerLayout => "the file of the published job of fio",
            Self::IozoneWrite | Self::IozoneRead => "in the manner of IOzone, by fio",
            Self::ThreadedLayout
            | Self::ThreadedWrite
            | Self::ThreadedRead
            | Self::ThreadedCached => "in the manner of the Threaded I/O Tester, by fio",
            Self::MeltRead | Self::MeltReread | Self::MeltRereadAlone | Self::MeltMixed => {
                "in the manner of IOMelt"
            }
        }
    }
}
