//! Programs of a desktop benchmark that a client of a scenario stands for, if it is run live on a
//! file system.
//!
//! In virtual time, and live without a file system, the client's batch of requests takes the place
//! of the program: it is what such a program sends to its volume. `crates/bench/src/desktop.rs`
//! runs the programs themselves.
//!
//! sysbench's file test and fio on files differ from the others: they run as long as their client,
//! and the client's requests are theirs, with a file system and without one.

/// A program that measures, or one that creates the files of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// A file written from begin to end; calls are MiB.
    IozoneWrite,
    /// The file of [`Self::IozoneWrite`], read from begin to end; calls are MiB.
    IozoneRead,
    /// The file of the file server, written; calls are MiB.
    FileServerLayout,
    /// Random reads and writes of 512 bytes to 64 KiB, 64 at once; calls are MiB of its file.
    FileServer,
    /// Rows inserted, each a transaction; calls are rows.
    Sqlite,
    /// Files of 1 MiB, each flushed before it is closed; calls are files.
    FsMark,
    /// The 32 files of the threaded programs, written; calls are KiB of each file.
    ThreadedLayout,
    /// 32 threads, each of which writes 4 KiB anywhere in its file and flushes it; calls are those
    /// of each thread.
    ThreadedWrite,
    /// 32 threads, each of which reads 4 KiB anywhere in its file, past the page cache; calls are
    /// those of each thread.
    ThreadedRead,
    /// As [`Self::ThreadedRead`], from the page cache; calls are the first blocks of each file,
    /// which are read repeatedly for a fixed time.
    ThreadedCached,
    /// IOMelt's file, read from begin to end; calls are reads.
    MeltRead,
    /// Reads at random places of IOMelt's file; calls are reads.
    MeltReread,
    /// As [`Self::MeltReread`], without read-ahead; calls are reads.
    MeltRereadAlone,
    /// Reads and writes at random places of IOMelt's file, with equal chances; calls are both.
    MeltMixed,
    /// Random asynchronous writes of 64 KiB; calls are MiB.
    AioStress,
    /// Clients of a file server, for a given number of seconds; calls are clients.
    Dbench,
    /// Small files of a mail server, from the page cache; calls are transactions.
    Postmark,
    /// A file of zeros, compressed; calls are MiB.
    Gzip,
    /// Ten trees of source files, created and flushed; calls are source files of each.
    TreesCreate,
    /// Object files of those trees, written in random order and flushed; calls are source files of
    /// each.
    TreesCompile,
    /// Source and object files, read from the page cache; calls are source files of each.
    TreesRead,
    /// A tree of source files, extracted from its archive; calls are source files.
    Unpack,
    /// A web server that serves one page; calls are requests.
    Apache,
    /// sysbench's file test for the time of its client; calls are files.
    Sysbench,
    /// fio on files for the time of its client; calls are files.
    Fio,
    /// Transactions on PostgreSQL, at a share of its highest rate; calls are percent. Its client's
    /// load is the I/O of it that reaches the volume. Further clients of the volume are the
    /// database's log and a batch job on it.
    Pgbench,
    /// As [`Self::Pgbench`], on MariaDB, by sysbench.
    SysbenchOltp,
    /// Transactions one after another on a PostgreSQL server of their own; calls are transactions.
    PgbenchBatch,
}

/// A database that a program needs; each program has a server of its own on a file system.
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

/// A program, and the amount of its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramSetup {
    /// The program.
    pub program: Program,
    /// The amount of its work, in its own unit.
    pub calls: u64,
    /// Its duration in seconds; 0 if it ends with its work or with its client.
    pub seconds: u64,
}

impl Program {
    /// Every program, by the word that scenarios use.
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

    /// Returns the names of the programs that do it. fio and Evenkeel's own programs replace those
    /// that are not available.
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

    /// Returns the database that must run beside it, if it needs one.
    #[must_use]
    pub const fn engine(self) -> Option<Engine> {
        match self {
            Self::Pgbench | Self::PgbenchBatch => Some(Engine::Postgres),
            Self::SysbenchOltp => Some(Engine::MariaDb),
            _ => None,
        }
    }

    /// Returns whether it executes transactions at a share of a database's highest rate.
    #[must_use]
    pub const fn is_transactions(self) -> bool {
        matches!(self, Self::Pgbench | Self::SysbenchOltp)
    }

    /// Returns whether it runs as long as its client and sends the client's requests. Otherwise it
    /// is a batch.
    #[must_use]
    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Sysbench | Self::Fio)
    }

    /// Returns whether its command line needs a duration.
    #[must_use]
    pub const fn needs_seconds(self) -> bool {
        matches!(self, Self::Dbench)
    }

    /// Returns whether it is a pass of IOMelt. Those need the file that earlier passes wrote.
    #[must_use]
    pub const fn is_of_iomelt(self) -> bool {
        matches!(self, Self::MeltRead | Self::MeltReread | Self::MeltRereadAlone | Self::MeltMixed)
    }

    /// Returns whether it can run only live on a file system: a kernel's page cache answers it, or
    /// its client's processor binds it as much as its volume. Virtual time has no substitute. The
    /// requests of such a client's batch are the units that the program itself counts.
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

    /// Returns whether, live, its client's processor binds it as much as its volume: on a slower
    /// processor it is slower.
    #[must_use]
    pub const fn is_bound_by_client(self) -> bool {
        self.is_live_only() || matches!(self, Self::PgbenchBatch)
    }

    /// Returns the plural of its unit, if that is not requests to its volume.
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

    /// Returns whether its I/O on the volume is known, so that a client can send the same requests
    /// without it.
    #[must_use]
    pub const fn is_of_requests(self) -> bool {
        !self.is_live_only() && self.engine().is_none()
    }

    /// Returns whether it is the published program itself, or an imitation, in words.
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
