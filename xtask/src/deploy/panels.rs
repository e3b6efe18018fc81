//! The panels of the dashboard, as data: rows, and what each panel asks and says.

use super::JOB;

/// A heading with its panels.
pub struct Row {
    pub title: &'static str,
    pub panels: &'static [Panel],
}

/// How a panel draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One figure.
    Stat,
    /// A line for each series.
    Lines,
    /// Areas on top of each other: the series add up.
    Stack,
}

/// When a figure is shown in red.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Red {
    Never,
    From(f64),
    Below(f64),
}

/// One panel.
pub struct Panel {
    pub title: &'static str,
    /// How to read it.
    pub description: &'static str,
    pub kind: Kind,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// In columns of 24.
    pub width: u8,
    pub red: Red,
    pub queries: &'static [Query],
}

/// One query of a panel.
pub struct Query {
    /// PromQL. `VOLUME`, `HOST` and `SERVER` stand for the matchers of the dashboard's variables,
    /// `JOB` for the name of the scrape job.
    pub expression: &'static str,
    pub legend: &'static str,
    /// A limit is a dashed line without an area.
    pub is_limit: bool,
}

impl Query {
    /// The expression as Grafana gets it.
    pub fn promql(&self) -> String {
        let server = "instance=~\"$server\"";
        let text = self.expression.replace("VOLUME", "SERVER,volume_id=~\"$volume\"");
        let text = text.replace("HOST", "SERVER,instance_id=~\"$host\"");
        text.replace("SERVER", server).replace("JOB", JOB)
    }
}

const fn query(expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend, is_limit: false }
}

const fn limit(expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend, is_limit: true }
}

const fn stat(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    red: Red,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, kind: Kind::Stat, unit, width: 4, red, queries }
}

const fn lines(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, kind: Kind::Lines, unit, width: 12, red: Red::Never, queries }
}

const fn stack(
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel { title, description, kind: Kind::Stack, unit, width: 12, red: Red::Never, queries }
}

/// All rows, from the top.
pub const ROWS: [Row; 9] =
    [OVERVIEW, PROMISE, RATES, LATENCY, CREDITS, DEVICE, SPACE, HOSTS, SERVER_AND_API];

const OVERVIEW: Row = Row {
    title: "Overview",
    panels: &[
        stat(
            "Promise kept, all volumes",
            "The share of judged seconds in the time shown in which volumes got what was sold. \
             From recorded series, so that months can be asked for: needs evenkeel.rules.yml.",
            "percentunit",
            Red::Below(0.999),
            &[query(
                "1 - sum(sum_over_time(\
                 evenkeel:contract_missed_seconds:increase5m{SERVER}[$__range])) \
                 / sum(sum_over_time(evenkeel:contract_seconds:increase5m{SERVER}[$__range]))",
                "kept",
            )],
        ),
        stat(
            "Servers down",
            "Servers that do not answer scrapes.",
            "short",
            Red::From(1.0),
            &[query("count(up{job=\"JOB\",SERVER} == 0) or vector(0)", "down")],
        ),
        stat(
            "Volumes in error",
            "Volumes whose bytes are missing or damaged. They are not served.",
            "short",
            Red::From(1.0),
            &[query("sum(evenkeel_volumes{SERVER,state=\"error\"}) or vector(0)", "in error")],
        ),
        stat(
            "Flushes failed",
            "Volumes on which a flush has failed, so that acknowledged writes may be lost.",
            "short",
            Red::From(1.0),
            &[query("sum(evenkeel_flush_failed{SERVER})", "failed")],
        ),
        stat(
            "I/O errors",
            "Requests answered with an error in the time shown, for whatever reason.",
            "short",
            Red::From(1.0),
            &[query("sum(increase(evenkeel_io_errors_total{SERVER}[$__range]))", "errors")],
        ),
        stat(
            "Least free space",
            "The share of the store that is free, of the server with the least.",
            "percentunit",
            Red::Below(0.1),
            &[query(
                "min(evenkeel_store_free_bytes{SERVER} / evenkeel_store_total_bytes{SERVER})",
                "free",
            )],
        ),
    ],
};

const PROMISE: Row = Row {
    title: "The promise",
    panels: &[
        lines(
            "Share of seconds kept",
            "Judged seconds in which the volume got at least 99 % of its reservation or did not \
             ask for it. On calibrated devices only.",
            "percentunit",
            &[query(
                "1 - rate(evenkeel_contract_missed_seconds_total{VOLUME}[$__rate_interval]) \
                 / rate(evenkeel_contract_seconds_total{VOLUME}[$__rate_interval])",
                "{{volume_id}}",
            )],
        ),
        lines(
            "Seconds missed",
            "Seconds in each interval in which the volume did not get what was sold with it.",
            "short",
            &[query(
                "increase(evenkeel_contract_missed_seconds_total{VOLUME}[$__rate_interval])",
                "{{volume_id}}",
            )],
        ),
    ],
};

const RATES: Row = Row {
    title: "IOPS and throughput against the limit",
    panels: &[
        lines(
            "IOPS",
            "I/Os a second as the limit counts them; dashed: the limit, and what credits allow.",
            "iops",
            &[
                query(
                    "rate(evenkeel_counted_ios_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}}",
                ),
                limit("evenkeel_provisioned_iops{VOLUME}", "{{volume_id}} limit"),
                limit("evenkeel_burst_iops{VOLUME}", "{{volume_id}} burst"),
            ],
        ),
        lines(
            "Throughput",
            "Bytes a second of reads and writes; dashed: the limit, and what credits allow.",
            "binBps",
            &[
                query(
                    "rate(evenkeel_read_bytes_total{VOLUME}[$__rate_interval]) \
                     + rate(evenkeel_write_bytes_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}}",
                ),
                limit("evenkeel_provisioned_throughput_bytes{VOLUME}", "{{volume_id}} limit"),
                limit("evenkeel_burst_throughput_bytes{VOLUME}", "{{volume_id}} burst"),
            ],
        ),
        lines(
            "Share of the IOPS limit in use",
            "1 is the limit without bursts. A volume that bursts is above it.",
            "percentunit",
            &[query(
                "rate(evenkeel_counted_ios_total{VOLUME}[$__rate_interval]) \
                 / evenkeel_provisioned_iops{VOLUME}",
                "{{volume_id}}",
            )],
        ),
        lines(
            "Share of the throughput limit in use",
            "1 is the limit without bursts. A volume that bursts is above it.",
            "percentunit",
            &[query(
                "(rate(evenkeel_read_bytes_total{VOLUME}[$__rate_interval]) \
                 + rate(evenkeel_write_bytes_total{VOLUME}[$__rate_interval])) \
                 / evenkeel_provisioned_throughput_bytes{VOLUME}",
                "{{volume_id}}",
            )],
        ),
        lines(
            "Time at the volume's own limits",
            "The share of the time in which a limit of the volume delayed it.",
            "percentunit",
            &[
                query(
                    "rate(evenkeel_exceeded_iops_seconds_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} IOPS",
                ),
                query(
                    "rate(evenkeel_exceeded_tp_seconds_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} throughput",
                ),
                query(
                    "rate(evenkeel_exceeded_guard_seconds_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} flushes and discards",
                ),
            ],
        ),
        lines(
            "Time at the host's limits",
            "The share of the time in which a limit of the volume's host delayed it.",
            "percentunit",
            &[
                query(
                    "rate(evenkeel_exceeded_instance_iops_seconds_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} IOPS",
                ),
                query(
                    "rate(evenkeel_exceeded_instance_tp_seconds_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} throughput",
                ),
            ],
        ),
    ],
};

const LATENCY: Row = Row {
    title: "Latency",
    panels: &[
        lines(
            "Reads: p50, p99, p99.9",
            "From arrival to reply, of all chosen volumes together. The buckets end at powers of \
             two, so a value is exact to a factor of two to eight; above 1.07 s it is 1.07 s.",
            "s",
            &[
                query(
                    "histogram_quantile(0.5, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"read\",stage=\"total\"}[$__rate_interval])))",
                    "p50",
                ),
                query(
                    "histogram_quantile(0.99, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"read\",stage=\"total\"}[$__rate_interval])))",
                    "p99",
                ),
                query(
                    "histogram_quantile(0.999, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"read\",stage=\"total\"}[$__rate_interval])))",
                    "p99.9",
                ),
            ],
        ),
        lines(
            "Writes: p50, p99, p99.9",
            "As of reads.",
            "s",
            &[
                query(
                    "histogram_quantile(0.5, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"write\",stage=\"total\"}[$__rate_interval])))",
                    "p50",
                ),
                query(
                    "histogram_quantile(0.99, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"write\",stage=\"total\"}[$__rate_interval])))",
                    "p99",
                ),
                query(
                    "histogram_quantile(0.999, sum by (le) (rate(evenkeel_io_latency_seconds_bucket\
                     {VOLUME,op=\"write\",stage=\"total\"}[$__rate_interval])))",
                    "p99.9",
                ),
            ],
        ),
        lines(
            "p99 by volume",
            "Reads and writes together, from arrival to reply.",
            "s",
            &[query(
                "histogram_quantile(0.99, sum by (volume_id, le) (\
                 rate(evenkeel_io_latency_seconds_bucket{VOLUME,stage=\"total\"}\
                 [$__rate_interval])))",
                "{{volume_id}}",
            )],
        ),
        lines(
            "Mean by volume and kind",
            "Exact, unlike the quantiles.",
            "s",
            &[
                query(
                    "rate(evenkeel_read_seconds_total{VOLUME}[$__rate_interval]) \
                     / rate(evenkeel_read_ops_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} read",
                ),
                query(
                    "rate(evenkeel_write_seconds_total{VOLUME}[$__rate_interval]) \
                     / rate(evenkeel_write_ops_total{VOLUME}[$__rate_interval])",
                    "{{volume_id}} write",
                ),
            ],
        ),
        stack(
            "Where the time goes",
            "Seconds a second that requests spend in each stage. volume_* and instance_* are \
             limits, device_queue and server are the server's responsibility, device is the disk.",
            "short",
            &[query(
                "sum by (stage) (rate(evenkeel_io_stage_seconds_total{VOLUME}[$__rate_interval]))",
                "{{stage}}",
            )],
        ),
        lines(
            "Queue length",
            "Requests that wait or are being executed.",
            "short",
            &[query("evenkeel_queue_length{VOLUME}", "{{volume_id}}")],
        ),
    ],
};

const CREDITS: Row = Row {
    title: "Credits",
    panels: &[
        lines(
            "Burst balance of volumes",
            "Credits as a share of what may be saved: gp2, st1, sc1.",
            "percentunit",
            &[query("evenkeel_burst_balance_ratio{VOLUME}", "{{volume_id}}")],
        ),
        lines(
            "Time until the credits are spent",
            "At the present rate. A volume whose balance does not fall is not shown.",
            "s",
            &[query("evenkeel_burst_empty_eta_seconds{VOLUME} < +Inf", "{{volume_id}}")],
        ),
        lines(
            "Burst balance of hosts",
            "Credits as a share of what may be saved, for each limit of types that burst.",
            "percentunit",
            &[query("evenkeel_host_burst_balance_ratio{HOST}", "{{instance_id}} {{limit}}")],
        ),
    ],
};

const DEVICE: Row = Row {
    title: "Device and background work",
    panels: &[
        lines(
            "Time delayed by the device",
            "The share of the time in which a volume within its limits waited for the device: the \
             server's responsibility.",
            "percentunit",
            &[query(
                "rate(evenkeel_exceeded_device_seconds_total{VOLUME}[$__rate_interval])",
                "{{volume_id}}",
            )],
        ),
        lines(
            "Mean time in the device",
            "Of each part into which requests are split, in the store and the disk below it.",
            "s",
            &[query(
                "sum by (instance, op) (rate(evenkeel_io_latency_seconds_sum\
                 {SERVER,stage=\"device\"}[$__rate_interval])) \
                 / sum by (instance, op) (rate(evenkeel_io_latency_seconds_count\
                 {SERVER,stage=\"device\"}[$__rate_interval]))",
                "{{instance}} {{op}}",
            )],
        ),
        lines(
            "Background work",
            "Bytes a second of scrubs (verify) and of snapshots copied out (read) and in (fill); \
             dashed: the limit of all together.",
            "binBps",
            &[
                query(
                    "rate(evenkeel_background_bytes_total{SERVER}[$__rate_interval])",
                    "{{instance}} {{work}}",
                ),
                limit("evenkeel_background_limit_bytes{SERVER}", "{{instance}} limit"),
            ],
        ),
        lines(
            "Background work that waits",
            "Pieces that wait for the device, because volumes go first.",
            "short",
            &[query("evenkeel_background_waiting{SERVER}", "{{instance}}")],
        ),
        lines(
            "Bytes scrubbed",
            "By the running or last scrub.",
            "bytes",
            &[query("evenkeel_scrub_verified_bytes{SERVER}", "{{instance}}")],
        ),
        lines(
            "Rotten places",
            "That the running or last scrub found, and reads by clients that met rotten data.",
            "short",
            &[
                query("evenkeel_scrub_rotten_places{SERVER}", "{{instance}} scrub"),
                query(
                    "increase(evenkeel_io_errors_total{VOLUME,reason=\"rotten\"}\
                     [$__rate_interval]) > 0",
                    "{{volume_id}} reads",
                ),
            ],
        ),
    ],
};

const SPACE: Row = Row {
    title: "Space and capacity",
    panels: &[
        lines(
            "Space of the store",
            "Total, free, and sold; dashed: what may be sold. Sold above total is oversold.",
            "bytes",
            &[
                query("evenkeel_store_total_bytes{SERVER}", "{{instance}} total"),
                query("evenkeel_store_free_bytes{SERVER}", "{{instance}} free"),
                query("evenkeel_store_sold_bytes{SERVER}", "{{instance}} sold"),
                limit("evenkeel_store_for_sale_bytes{SERVER}", "{{instance}} may be sold"),
            ],
        ),
        stack(
            "IOPS reserved, by type",
            "What volumes have reserved of the device; what may be sold shows \
             `evenkeel volume capacity`.",
            "iops",
            &[query("sum by (volume_type) (evenkeel_floor_iops{SERVER})", "{{volume_type}}")],
        ),
        stack(
            "Volumes by state",
            "Volumes that exist.",
            "short",
            &[query("sum by (state) (evenkeel_volumes{SERVER})", "{{state}}")],
        ),
        stack(
            "Snapshots by state",
            "Snapshots that exist.",
            "short",
            &[query("sum by (state) (evenkeel_snapshots{SERVER})", "{{state}}")],
        ),
        lines(
            "Data of snapshots",
            "Each snapshot counts whole, whatever it shares with others.",
            "bytes",
            &[query("evenkeel_snapshot_data_bytes{SERVER}", "{{instance}}")],
        ),
    ],
};

const HOSTS: Row = Row {
    title: "Hosts with limits",
    panels: &[
        lines(
            "IOPS of hosts",
            "Of all volumes of the host; dashed: its limit without bursts.",
            "iops",
            &[
                query("rate(evenkeel_host_ios_total{HOST}[$__rate_interval])", "{{instance_id}}"),
                limit("evenkeel_host_provisioned_iops{HOST}", "{{instance_id}} limit"),
            ],
        ),
        lines(
            "Throughput of hosts",
            "Of all volumes of the host; dashed: its limit without bursts.",
            "binBps",
            &[
                query("rate(evenkeel_host_bytes_total{HOST}[$__rate_interval])", "{{instance_id}}"),
                limit("evenkeel_host_provisioned_throughput_bytes{HOST}", "{{instance_id}} limit"),
            ],
        ),
        lines(
            "Time at the host's limits",
            "The share of the time in which the host's limits delayed its volumes.",
            "percentunit",
            &[
                query(
                    "rate(evenkeel_host_exceeded_iops_seconds_total{HOST}[$__rate_interval])",
                    "{{instance_id}} IOPS",
                ),
                query(
                    "rate(evenkeel_host_exceeded_tp_seconds_total{HOST}[$__rate_interval])",
                    "{{instance_id}} throughput",
                ),
            ],
        ),
        lines(
            "Volumes that wait for their host",
            "Volumes that wait for the limits of the host at present.",
            "short",
            &[query("evenkeel_host_waiting_volumes{HOST}", "{{instance_id}}")],
        ),
    ],
};

const SERVER_AND_API: Row = Row {
    title: "Server and API",
    panels: &[
        lines(
            "Servers that answer",
            "1 while a scrape succeeds. 0: the server is down, or its data plane does not answer.",
            "short",
            &[query("up{job=\"JOB\",SERVER}", "{{instance}}")],
        ),
        lines(
            "Time of a scrape",
            "Scrapes use the HTTP server of the API and ask every core of the data plane, so this \
             is how long the API takes, too.",
            "s",
            &[query("scrape_duration_seconds{job=\"JOB\",SERVER}", "{{instance}}")],
        ),
        lines(
            "Connections of clients",
            "Of each volume. A host may open 1,024 to one volume.",
            "short",
            &[query("evenkeel_connections{VOLUME}", "{{volume_id}}")],
        ),
        lines(
            "Starts of the server",
            "Starts in the last hour, seen by counters that begin anew.",
            "short",
            &[query(
                "max by (instance) (resets(evenkeel_counted_ios_total{SERVER}[1h]))",
                "{{instance}}",
            )],
        ),
        stack(
            "Servers by version",
            "Servers that answer, by the version that runs on them.",
            "short",
            &[query("count by (version) (evenkeel_build_info{SERVER})", "{{version}}")],
        ),
    ],
};
