//! The alerts, as data: what is asked, when it fires, why the threshold is where it is, and what
//! the operator does. The rules for Prometheus and docs/reference/alerts.md are made of it.

use super::JOB;

/// How urgent an alert is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Data or the promise is in danger: somebody acts now.
    Critical,
    /// Somebody acts within the day.
    Warning,
    /// A fact that explains a complaint. Nobody is called.
    Info,
}

impl Severity {
    /// The value of the label `severity`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Alerts on one subject. They are evaluated together.
pub struct Group {
    /// The name in the rules.
    pub name: &'static str,
    /// The heading in the reference.
    pub title: &'static str,
    pub alerts: &'static [Alert],
}

/// One alert.
pub struct Alert {
    pub name: &'static str,
    /// PromQL, broken into lines as a reader wants it. `JOB` stands for the name of the scrape job.
    pub expression: &'static str,
    /// How long the expression holds before the alert fires.
    pub hold: &'static str,
    pub severity: Severity,
    /// One line, with the labels of the series.
    pub summary: &'static str,
    /// What it means for clients.
    pub description: &'static str,
    /// Why the threshold and the time are what they are. Markdown.
    pub why: &'static str,
    /// What the operator does. Markdown, with links relative to docs/reference/.
    pub remedy: &'static str,
}

impl Alert {
    /// The expression as Prometheus gets it.
    pub fn promql(&self) -> String {
        self.expression.replace("JOB", JOB)
    }
}

/// All alerts, in the order of the rules and of the reference.
pub const GROUPS: [Group; 7] = [PROMISE, DATA, LIMITS, SPACE, SCRUB, ETCD, SERVER];

const PROMISE: Group = Group {
    name: "evenkeel-promise",
    title: "The promise",
    alerts: &[
        Alert {
            name: "EvenkeelPromiseBroken",
            expression: "rate(evenkeel_contract_missed_seconds_total[1h])\n  \
                         / rate(evenkeel_contract_seconds_total[1h]) > 0.01\n\
                         and increase(evenkeel_contract_missed_seconds_total[1h]) > 30",
            hold: "5m",
            severity: Severity::Critical,
            summary: "{{ $labels.volume_id }} missed its promise in \
                      {{ $value | humanizePercentage }} of the last hour",
            description: "The volume asks for what was sold with it and does not get it. Its \
                          clients are slow and it is not their fault.",
            why: "AWS promises provisioned performance in 99 % of the time for gp2 and gp3, so \
                  more than 1 % of missed seconds breaks even that. The 30 seconds keep a volume \
                  that was used for a minute from calling somebody.",
            remedy: "`evenkeel top --sort device` names the volumes that use the device. See \
                     whether [the device has become slower](#evenkeeldevicedelays) or [more is \
                     sold than there \
                     is](../operating/capacity.md#when-there-is-less-than-was-sold). \
                     Move or reduce volumes, or calibrate again.",
        },
        Alert {
            name: "EvenkeelPromiseMissed",
            expression: "increase(evenkeel_contract_missed_seconds_total[10m]) > 0",
            hold: "1m",
            severity: Severity::Warning,
            summary: "{{ $labels.volume_id }} missed its promise in about \
                      {{ $value | humanize }} of the last 600 s",
            description: "In these seconds the volume got less than 99 % of its reservation while \
                          its requests waited for the device.",
            why: "The promise holds for every second, so one missed second is a fact to look into. \
                  It may be a pause of the machine, so nobody is woken.",
            remedy: "Compare the time with the log and with other load on the machine. If it comes \
                     back, proceed as with [EvenkeelPromiseBroken](#evenkeelpromisebroken).",
        },
        Alert {
            name: "EvenkeelDeviceDelays",
            expression: "rate(evenkeel_exceeded_device_seconds_total[15m]) > 0.25",
            hold: "15m",
            severity: Severity::Warning,
            summary: "The device delays {{ $labels.volume_id }} in \
                      {{ $value | humanizePercentage }} of the time",
            description: "The volume is within its limits and waits for the device: the device is \
                          slower than at its calibration, or volumes burst into what others leave.",
            why: "A device that delivers what was measured delays volumes for moments. A quarter \
                  of the time for half an hour is more than a burst of neighbours.",
            remedy: "`evenkeel volume capacity` shows whether less is available than was measured. \
                     If so, look at the disk (`smartctl`, a RAID that rebuilds, other programs on \
                     it) and [calibrate](../operating/calibrate.md) again. If not, volumes use \
                     more than they have \
                     [reserved](../operating/capacity.md#what-a-volume-reserves): \
                     nothing that was sold is missing.",
        },
        Alert {
            name: "EvenkeelCalibrationMissing",
            expression: "sum by (job, instance) (rate(evenkeel_counted_ios_total[15m])) > 0\n\
                         unless on (job, instance) evenkeel_contract_seconds_total",
            hold: "30m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} serves volumes without a calibration",
            description: "The server does not know what its device can deliver. It guarantees no \
                          floor, and it cannot tell whether the promise is kept.",
            why: "Seconds are judged on a calibrated device only, so a used volume without judged \
                  seconds shows that there is no calibration. Half an hour leaves room for a \
                  first start.",
            remedy: "Stop the server and run [`evenkeel calibrate`](../operating/calibrate.md). \
                     Silence the alert for a server that runs with `--no-guarantee`.",
        },
        Alert {
            name: "EvenkeelServerLate",
            expression: "sum by (job, instance) (\n  \
                         rate(evenkeel_io_stage_seconds_total{stage=\"server\"}[10m])\n) / \
                         sum by (job, instance) (\n  rate(evenkeel_io_stage_seconds_total[10m])\n) \
                         > 0.1",
            hold: "10m",
            severity: Severity::Warning,
            summary: "On {{ $labels.instance }}, {{ $value | humanizePercentage }} of the time of \
                      requests goes into the server itself",
            description: "Requests wait for payload memory or for a core: the server has more to \
                          do than its cores and its memory allow.",
            why: "This stage is microseconds of milliseconds on a server with room. A tenth is \
                  visible in the latency that clients measure.",
            remedy: "Give the server more `cores`, take other programs off the machine, or move \
                     volumes to another server. See \
                     [what the time goes to](../operating/monitoring.md#what-to-do-about-it).",
        },
    ],
};

const DATA: Group = Group {
    name: "evenkeel-data",
    title: "Data",
    alerts: &[
        Alert {
            name: "EvenkeelVolumeInError",
            expression: "evenkeel_volumes{state=\"error\"} > 0",
            hold: "2m",
            severity: Severity::Critical,
            summary: "{{ $value }} volumes of {{ $labels.instance }} are in the state error",
            description: "Their bytes are missing, damaged, or encrypted with a key that the \
                          server does not have. They are not served.",
            why: "No volume belongs in this state. A volume comes back by itself within seconds \
                  once the cause is gone, so two minutes mean that the cause is there.",
            remedy: "`evenkeel doctor` and `evenkeel volume show` tell the reason; \
                     [durability](../operating/durability.md#when-something-is-wrong-below) has \
                     the remedy of each.",
        },
        Alert {
            name: "EvenkeelFlushFailed",
            expression: "evenkeel_flush_failed == 1",
            hold: "1m",
            severity: Severity::Critical,
            summary: "A flush of {{ $labels.volume_id }} has failed",
            description: "Writes that were acknowledged before it may be lost. Every later flush \
                          and write of the volume fails, so databases on it stop.",
            why: "One failed flush is one too many. It stays until an operator acts, so a minute \
                  loses nothing.",
            remedy: "Read the kernel's log for the disk. Stop the programs on the volume, detach \
                     it from all hosts and attach it again, and let the database recover. See \
                     [durability](../operating/durability.md#when-something-is-wrong-below).",
        },
        Alert {
            name: "EvenkeelStalled",
            expression: "evenkeel_stalled == 1",
            hold: "0m",
            severity: Severity::Critical,
            summary: "{{ $labels.volume_id }} has requests and starts none",
            description: "For a minute no request of the volume was started, or for five seconds \
                          the store ended none. Its clients wait.",
            why: "Limits delay a request for seconds at most, so a minute without any is a device \
                  that does not answer.",
            remedy: "If all volumes are stalled, the disk hangs: read the kernel's log. If it is \
                     one, `evenkeel volume show` tells its limits and `evenkeel top` what \
                     delays it.",
        },
        Alert {
            name: "EvenkeelRottenData",
            expression: "increase(evenkeel_io_errors_total{reason=\"rotten\"}[1h]) > 0",
            hold: "0m",
            severity: Severity::Critical,
            summary: "Clients of {{ $labels.volume_id }} read data that the disk has changed",
            description: "The checksum of a block does not fit. Clients get an I/O error, never \
                          the wrong data. There is no second copy.",
            why: "Damage to data never is noise. The hour keeps the alert up long enough to be \
                  seen, since nobody may read the block again.",
            remedy: "The log names volume and offset. Start a [scrub](../operating/store.md#scrub) \
                     to find all damage, restore from a \
                     [snapshot's export](../operating/snapshots.md) or a backup, and replace the \
                     disk.",
        },
        Alert {
            name: "EvenkeelStoreDamaged",
            expression: "evenkeel_store_troubles{kind=\"damaged_sector\"} > 0",
            hold: "0m",
            severity: Severity::Critical,
            summary: "{{ $value }} sectors of the pool's tables of {{ $labels.instance }} are \
                      damaged in both copies",
            description: "Volumes or snapshots that these sectors name are in the state error. \
                          All others are served.",
            why: "Damage to metadata never is noise. The figure stays until the pool is restored \
                  or replaced.",
            remedy: "The server's log names each sector. Restore the pool from a copy, or copy its \
                     volumes to another one: see \
                     [durability](../operating/durability.md#when-something-is-wrong-below). \
                     Replace the disk.",
        },
        Alert {
            name: "EvenkeelStoreCopiesMended",
            expression: "increase(evenkeel_store_copies_mended_total[1d]) > 0",
            hold: "0m",
            severity: Severity::Warning,
            summary: "The pool of {{ $labels.instance }} had damaged copies, which were written \
                      anew",
            description: "Nothing is lost: each second copy was whole. The disk returns other \
                          bytes than were written, or none.",
            why: "A healthy disk changes nothing. The day keeps the alert up long enough to be \
                  seen. Copies that are mended at a start count, too, if Prometheus has scraped \
                  the server in the day before.",
            remedy: "The log names the places. Look at the disk (`smartctl`), run \
                     [`evenkeel store scrub`](../operating/store.md#scrub), which reads the data, \
                     too, and replace the disk.",
        },
        Alert {
            name: "EvenkeelStoreUnfinished",
            expression: "evenkeel_store_troubles{kind=\"unfinished\"} > 0",
            hold: "5m",
            severity: Severity::Warning,
            summary: "{{ $value }} volumes of {{ $labels.instance }} that are not open have work \
                      that fails",
            description: "Most of them are deleted. They keep their space; all other volumes are \
                          served.",
            why: "What fails for a moment is tried again. After five minutes the cause is there.",
            remedy: "The log names each volume and the reason, which is an error of the disk or \
                     damage in most cases. The work is tried again at the next start of the \
                     server; see [the store](../operating/store.md#what-is-guaranteed).",
        },
        Alert {
            name: "EvenkeelIoErrors",
            expression: "increase(evenkeel_io_errors_total{reason=\"device\"}[15m]) > 0",
            hold: "0m",
            severity: Severity::Critical,
            summary: "Requests to {{ $labels.volume_id }} fail: the store below cannot serve them",
            description: "Clients get I/O errors. File systems on the volume may become read-only.",
            why: "A healthy disk fails no request, and a file system reacts to the first one.",
            remedy: "The server's log and the kernel's name the error. Check cables, RAID and \
                     `smartctl`, and copy the data away while the disk can be read.",
        },
        Alert {
            name: "EvenkeelIoStalled",
            expression: "min_over_time(evenkeel_queue_length[2m]) > 0\nand (\n  \
                         increase(evenkeel_read_ops_total[2m])\n  \
                         + increase(evenkeel_write_ops_total[2m])\n  \
                         + increase(evenkeel_flushes_total[2m])\n  \
                         + increase(evenkeel_counted_ios_total[2m])\n) == 0\n\
                         unless increase(evenkeel_exceeded_guard_seconds_total[2m]) > 0",
            hold: "2m",
            severity: Severity::Critical,
            summary: "{{ $value }} requests to {{ $labels.volume_id }} wait and none is answered",
            description: "The disk hangs, or the server does. Clients wait without an error.",
            why: "The slowest volume type answers a request of the largest size within half a \
                  minute. Two minutes of silence, seen for two more, are no limit at work. Long \
                  discards, which the guard paces, are left out.",
            remedy: "Look for hung tasks in the kernel's log and at the disk's queue \
                     (`iostat -x`). With \
                     [a disk that hangs](../operating/durability.md#when-something-is-wrong-below) \
                     requests go on by themselves once it answers.",
        },
        Alert {
            name: "EvenkeelSnapshotInError",
            expression: "evenkeel_snapshots{state=\"error\"} > 0",
            hold: "10m",
            severity: Severity::Warning,
            summary: "{{ $value }} snapshots of {{ $labels.instance }} are in the state error",
            description: "They hold nothing that can be restored. A backup may be missing.",
            why: "A snapshot that is being deleted is in this state for moments. After ten \
                  minutes it is a failed one.",
            remedy: "`evenkeel snapshot show` tells the reason. Make the \
                     [snapshot](../operating/snapshots.md) again and delete the failed one.",
        },
    ],
};

const LIMITS: Group = Group {
    name: "evenkeel-limits",
    title: "Limits and credits",
    alerts: &[
        Alert {
            name: "EvenkeelVolumeAtLimit",
            expression: "rate(evenkeel_exceeded_iops_seconds_total[15m]) > 0.8\n\
                         or rate(evenkeel_exceeded_tp_seconds_total[15m]) > 0.8",
            hold: "30m",
            severity: Severity::Info,
            summary: "{{ $labels.volume_id }} is at its limit in \
                      {{ $value | humanizePercentage }} of the time",
            description: "The volume gets all that was sold with it, and its clients want more.",
            why: "A volume at its limit is what was sold and no fault. Four fifths of the time \
                  for 45 minutes is no backup or batch job of moments: somebody should buy more.",
            remedy: "`evenkeel volume modify` raises IOPS or throughput at once. See \
                     [what the time goes to](../operating/monitoring.md#what-to-do-about-it).",
        },
        Alert {
            name: "EvenkeelHostAtLimit",
            expression: "rate(evenkeel_host_exceeded_iops_seconds_total[15m]) > 0.8\n\
                         or rate(evenkeel_host_exceeded_tp_seconds_total[15m]) > 0.8",
            hold: "30m",
            severity: Severity::Info,
            summary: "Host {{ $labels.instance_id }} is at its limit in \
                      {{ $value | humanizePercentage }} of the time",
            description: "The volumes of the host together want more than its type \
                          {{ $labels.instance_type }} may have. Larger volumes do not help.",
            why: "The same as of a volume: not a fault, but for so long a reason to act.",
            remedy: "Use a larger instance type, or put fewer volumes on the host.",
        },
        Alert {
            name: "EvenkeelBurstEndsSoon",
            expression: "evenkeel_burst_empty_eta_seconds < 1800\n\
                         and evenkeel_burst_balance_ratio < 0.5",
            hold: "5m",
            severity: Severity::Warning,
            summary: "The credits of {{ $labels.volume_id }} last for \
                      {{ $value | humanizeDuration }}",
            description: "When they are spent, the volume falls to its baseline at once.",
            why: "Half an hour is enough to modify the volume before it becomes slow. Above half \
                  of the credits the present load may well end first.",
            remedy: "Use gp3, which needs no credits, or a larger volume, whose baseline is \
                     higher: `evenkeel volume modify`.",
        },
        Alert {
            name: "EvenkeelBurstBalanceLow",
            expression: "evenkeel_burst_balance_ratio < 0.1",
            hold: "15m",
            severity: Severity::Warning,
            summary: "{{ $labels.volume_id }} has {{ $value | humanizePercentage }} of its credits",
            description: "The volume runs at its baseline or is about to. The next burst is short.",
            why: "At a tenth a gp2 volume has three minutes of its full burst. A quarter of an \
                  hour below shows that the load stays.",
            remedy: "As with [EvenkeelBurstEndsSoon](#evenkeelburstendssoon).",
        },
        Alert {
            name: "EvenkeelHostBurstBalanceLow",
            expression: "evenkeel_host_burst_balance_ratio < 0.1",
            hold: "15m",
            severity: Severity::Warning,
            summary: "Host {{ $labels.instance_id }} has {{ $value | humanizePercentage }} of its \
                      credits for {{ $labels.limit }}",
            description: "All volumes of the host fall to its baseline together.",
            why: "As of a volume: three minutes of a burst of half an hour.",
            remedy: "Use an instance type that does not burst, or put fewer volumes on the host.",
        },
        Alert {
            name: "EvenkeelConnectionsNearBound",
            expression: "evenkeel_connections > 819",
            hold: "5m",
            severity: Severity::Warning,
            summary: "{{ $labels.volume_id }} has {{ $value }} connections",
            description: "A host may open 1,024 to one volume. Beyond that the server refuses \
                          clients.",
            why: "Four fifths of the bound. A client opens about as many as it has cores, so so \
                  many are clients that open new connections and close none.",
            remedy: "Find the client with `ss -tn` on the host, and see \
                     [what one client can \
                     do](../operating/security.md#what-one-client-can-do-to-others).",
        },
    ],
};

const SPACE: Group = Group {
    name: "evenkeel-space",
    title: "Space",
    alerts: &[
        Alert {
            name: "EvenkeelWritesWithoutSpace",
            expression: "increase(evenkeel_io_errors_total{reason=\"no_space\"}[15m]) > 0",
            hold: "0m",
            severity: Severity::Critical,
            summary: "Writes to {{ $labels.volume_id }} fail for lack of space",
            description: "The disk is full. Writes to new places fail with ENOSPC in every volume; \
                          existing data can be read and overwritten.",
            why: "A client has the error already. There is no smaller number to wait for.",
            remedy: "Delete volumes and snapshots, discard what volumes no longer need \
                     (`fstrim`), or remove other files from the disk. See \
                     [space](../operating/capacity.md#space).",
        },
        Alert {
            name: "EvenkeelSpaceCritical",
            expression: "evenkeel_store_free_bytes / evenkeel_store_total_bytes < 0.03",
            hold: "1m",
            severity: Severity::Critical,
            summary: "{{ $value | humanizePercentage }} of the store of {{ $labels.instance }} \
                      is free",
            description: "Writes to new places are about to fail in every volume.",
            why: "The server logs an error below the same 3 %.",
            remedy: "As with [EvenkeelWritesWithoutSpace](#evenkeelwriteswithoutspace).",
        },
        Alert {
            name: "EvenkeelSpaceLow",
            expression: "evenkeel_store_free_bytes / evenkeel_store_total_bytes < 0.1",
            hold: "10m",
            severity: Severity::Warning,
            summary: "{{ $value | humanizePercentage }} of the store of {{ $labels.instance }} \
                      is free",
            description: "Volumes fill up what they were sold, or other programs use the disk.",
            why: "The server logs a warning below the same tenth.",
            remedy: "As with [EvenkeelWritesWithoutSpace](#evenkeelwriteswithoutspace), in time.",
        },
        Alert {
            name: "EvenkeelStoreWorkWithoutSpace",
            expression: "evenkeel_store_troubles{kind=\"no_space\"} > 0",
            hold: "10m",
            severity: Severity::Warning,
            summary: "{{ $value }} volumes of {{ $labels.instance }} that are not open have work \
                      that waits for space",
            description: "Most of them are deleted, and their space does not come back before \
                          the work is done.",
            why: "The work is done as soon as there is space, so a short lack is none to act on.",
            remedy: "Make room as at [EvenkeelSpaceCritical](#evenkeelspacecritical): delete \
                     volumes or snapshots, or enlarge the pool.",
        },
        Alert {
            name: "EvenkeelSpaceFullWithinDay",
            expression: "predict_linear(evenkeel_store_free_bytes[6h], 86400) < 0\n\
                         and evenkeel_store_sold_bytes > evenkeel_store_total_bytes",
            hold: "1h",
            severity: Severity::Warning,
            summary: "At the rate of the last hours the store of {{ $labels.instance }} is full \
                      within a day",
            description: "More space is sold than there is, so volumes that are not full can get \
                          ENOSPC.",
            why: "Six hours even out a nightly job, and a day is enough to add a disk. Where no \
                  more is sold than there is, filling the store takes nothing from anybody.",
            remedy: "Add space, or move volumes to another server. See \
                     [space](../operating/capacity.md#space).",
        },
        Alert {
            name: "EvenkeelSpaceOversold",
            expression: "evenkeel_store_sold_bytes > evenkeel_store_for_sale_bytes",
            hold: "15m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} has sold {{ $value | humanize1024 }}B of space, more \
                      than it may",
            description: "Other programs fill the disk, or snapshots took the sum beyond what \
                          there is. New volumes and snapshots are refused.",
            why: "The bound is the operator's own (`oversell-space`). A snapshot that replaces \
                  another exceeds it for moments.",
            remedy: "Delete snapshots and volumes, or make room on the disk. See \
                     [space](../operating/capacity.md#space).",
        },
    ],
};

const SCRUB: Group = Group {
    name: "evenkeel-scrub",
    title: "Scrubs",
    alerts: &[
        Alert {
            name: "EvenkeelScrubFoundRot",
            expression: "evenkeel_scrub_rotten_places > 0",
            hold: "0m",
            severity: Severity::Critical,
            summary: "The scrub of {{ $labels.instance }} found {{ $value }} places that the disk \
                      has changed",
            description: "Reads of these places fail. There is no second copy.",
            why: "Damage to data never is noise. The figure is that of the running or last scrub, \
                  so the alert stays until a scrub finds nothing.",
            remedy: "[`evenkeel store scrub --status`](../operating/store.md#scrub) lists the \
                     places. Restore them from a backup, replace the disk, and scrub again.",
        },
        Alert {
            name: "EvenkeelScrubStuck",
            expression: "changes(evenkeel_scrub_verified_bytes[30m]) == 0\n\
                         and evenkeel_scrub_running == 1",
            hold: "30m",
            severity: Severity::Warning,
            summary: "The scrub of {{ $labels.instance }} has read nothing for half an hour",
            description: "Damage stays unnoticed until a client reads it.",
            why: "Volumes go first, but a device that leaves nothing for an hour is sold out or \
                  hangs.",
            remedy: "See whether the device is [too busy](#evenkeeldevicedelays). Raise \
                     `background-rate`, or stop the scrub and run it at night: it goes on where \
                     it was.",
        },
        Alert {
            name: "EvenkeelScrubTakesLong",
            expression: "evenkeel_scrub_running == 1",
            hold: "7d",
            severity: Severity::Warning,
            summary: "A scrub of {{ $labels.instance }} has been running for a week",
            description: "At this rate damage is found late.",
            why: "At its default of 50 MiB/s a scrub reads 28 TiB a week, more than a full pool of \
                  16 TiB and most of its snapshots.",
            remedy: "`evenkeel store scrub --rate` raises the rate of a \
                     [scrub](../operating/store.md#scrub) that runs.",
        },
    ],
};

const ETCD: Group = Group {
    name: "evenkeel-etcd",
    title: "etcd of a cluster",
    alerts: &[
        Alert {
            name: "EvenkeelEtcdFull",
            expression: "evenkeel_etcd_is_full == 1",
            hold: "2m",
            severity: Severity::Critical,
            summary: "The etcd member {{ $labels.endpoint }} is full",
            description: "etcd refuses every write: nothing can be changed, and no node can lead \
                          or take over from a lost one. Volumes are served as before.",
            why: "The leader gives up history, defragments the members and clears the alarm by \
                  itself within a minute. After two there is too much in use, or its user may \
                  not do that.",
            remedy: "The log names what was refused. Raise `--quota-backend-bytes` of all members \
                     and restart them one after the other, or delete keys of others; then \
                     `etcdctl alarm disarm`. See [etcd](../internals/etcd.md#space).",
        },
        Alert {
            name: "EvenkeelEtcdFilling",
            expression: "evenkeel_etcd_file_bytes > 0.8 * evenkeel_etcd_quota_bytes",
            hold: "30m",
            severity: Severity::Warning,
            summary: "The etcd member {{ $labels.endpoint }} has used 80 % of its quota",
            description: "A full etcd refuses every write.",
            why: "History of five minutes is given up all the time, so what stays for half an \
                  hour is in use.",
            remedy: "Raise `--quota-backend-bytes`; its default is 2 GiB, and 8 GiB are the most \
                     that etcd recommends.",
        },
        Alert {
            name: "EvenkeelEtcdMemberDown",
            expression: "evenkeel_etcd_up == 0",
            hold: "2m",
            severity: Severity::Warning,
            summary: "The etcd member {{ $labels.endpoint }} does not answer",
            description: "One more member that is lost may stop every change and takeover.",
            why: "A restart takes less.",
            remedy: "See its log, and `etcdctl endpoint status`.",
        },
        Alert {
            name: "EvenkeelEtcdNoLeader",
            expression: "evenkeel_etcd_has_leader == 0",
            hold: "1m",
            severity: Severity::Critical,
            summary: "The etcd member {{ $labels.endpoint }} knows no leader",
            description: "Without a leader of etcd nothing can be changed, and no node takes over \
                          from a lost one.",
            why: "An election takes a few seconds.",
            remedy: "See that a majority of the members runs and reaches each other: \
                     `etcdctl endpoint status`.",
        },
        Alert {
            name: "EvenkeelEtcdSlow",
            expression: "evenkeel_etcd_answer_seconds > 0.5",
            hold: "5m",
            severity: Severity::Warning,
            summary: "The etcd member {{ $labels.endpoint }} takes half a second to answer",
            description: "A leader's lease lasts 3 s: a slow etcd costs elections and takeovers \
                          of nodes that live.",
            why: "A member answers within milliseconds. An attempt ends after 1.5 s.",
            remedy: "See its disk: `etcd_disk_wal_fsync_duration_seconds` of etcd's own metrics \
                     should be below 10 ms. Give etcd disks of its own.",
        },
    ],
};

const SERVER: Group = Group {
    name: "evenkeel-server",
    title: "The server",
    alerts: &[
        Alert {
            name: "EvenkeelDown",
            expression: "up{job=\"JOB\"} == 0",
            hold: "2m",
            severity: Severity::Critical,
            summary: "{{ $labels.instance }} does not answer scrapes",
            description: "The server does not run, cannot be reached, or answers 503 because its \
                          data plane does not answer. No other alert of this server can fire.",
            why: "At an interval of 15 s two minutes are eight failed scrapes: more than a \
                  restart takes.",
            remedy: "`curl` its `/healthz` and `/metrics`. If the first is `ok` and the second \
                     503, the data plane hangs: read the log. If neither answers, start the \
                     server; clients \
                     [reconnect](../operating/clients.md#when-the-server-starts-again).",
        },
        Alert {
            name: "EvenkeelNotScraped",
            expression: "absent(up{job=\"JOB\"})",
            hold: "5m",
            severity: Severity::Critical,
            summary: "Prometheus scrapes no Evenkeel server",
            description: "All other alerts are silent, whatever happens.",
            why: "Five minutes are longer than a reload of Prometheus takes.",
            remedy: "The scrape job must be called as in the \
                     [sample configuration](../operating/monitoring.md#set-it-up), or the rules \
                     must name yours.",
        },
        Alert {
            name: "EvenkeelScrapeSlow",
            expression: "scrape_duration_seconds{job=\"JOB\"} > 5",
            hold: "10m",
            severity: Severity::Warning,
            summary: "A scrape of {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
            description: "The data plane answers the control plane late, or the API has too many \
                          connections. Changes through the API are slow, too.",
            why: "A scrape takes milliseconds, and the server gives it up after 10 s. Half of \
                  that is the last warning before EvenkeelDown.",
            remedy: "Read the log for cores that do not answer, and see whether several programs \
                     scrape: scrapes [wait for each other](metrics.md).",
        },
        Alert {
            name: "EvenkeelRestarts",
            expression: "max by (job, instance) (resets(evenkeel_counted_ios_total[1h])) >= 3",
            hold: "0m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} was started {{ $value }} times in an hour",
            description: "Clients have to reconnect each time, and a crash costs bursts up to ten \
                          seconds of credits.",
            why: "Counters begin at zero with each start, which shows on volumes in use. Two \
                  starts are an upgrade and its correction; three are a server that crashes.",
            remedy: "Read the end of each log, and the kernel's for processes that it ended for \
                     lack of memory.",
        },
        Alert {
            name: "EvenkeelJournalFails",
            expression: "evenkeel_journal_failing > 0",
            hold: "2m",
            severity: Severity::Critical,
            summary: "The journal of {{ $labels.instance }} takes no changes",
            description: "Volumes are served, but nothing can be changed, and bursts end when \
                          their leases do.",
            why: "The server tries every 5 s. Two minutes are longer than a disk or etcd pauses.",
            remedy: "`/readyz` and the server's log have the reason: the disk of the data folder \
                     is full or read-only, or etcd does not answer.",
        },
        Alert {
            name: "EvenkeelClockSet",
            expression: "evenkeel_clock_step_seconds > 60\nor evenkeel_clock_step_seconds < -60",
            hold: "0m",
            severity: Severity::Warning,
            summary: "The clock of {{ $labels.instance }} was set by {{ $value | humanize }} s",
            description: "Requests are refused while the clocks of clients and server differ by \
                          more than five minutes. Nothing expires by it: deadlines of the recycle \
                          bin, of locks and of modifications move with the clock.",
            why: "A clock that NTP keeps is not set by a minute while the server runs. A machine \
                  that was off for more than an hour looks the same.",
            remedy: "Run `timedatectl` on the machine. If the clock is wrong, set it: deadlines \
                     move back with it. If the machine was off, nothing is to be done; see \
                     [the clock](../operating/monitoring.md#the-clock). The alert ends an hour \
                     after the step.",
        },
        Alert {
            name: "EvenkeelEventsNotPosted",
            expression: "evenkeel_events_webhook_lag > 0\n\
                         and increase(evenkeel_events_webhook_failures_total[15m]) > 0",
            hold: "15m",
            severity: Severity::Warning,
            summary: "{{ $value }} events of {{ $labels.instance }} wait for {{ $labels.webhook }}",
            description: "The webhook does not accept events. Nothing is lost for a day.",
            why: "A receiver that is restarted is back within minutes. The pauses between posts \
                  grow to 5 minutes, so 15 minutes hold three of them.",
            remedy: "The server's log has the reason of the first failure. `evenkeel events` \
                     shows what waits; see [events](events.md).",
        },
    ],
};
