//! `evenkeel plan aws`: reads the volumes of an account and their metrics with the AWS CLI, keeps
//! the files, and judges the volumes by them as `plan fleet` does. Of a single volume it prints the
//! plan, too.

mod unfinished;

use super::{failure, fleet};
use crate::cli::{
    Plan, PlanAws, PlanFleet, PlanFormat, PlanOutput, PlanPageFile, PlanRules, PlanTraces,
    PlanWanted,
};
use evenkeel_autopilot::aws_cli::Aws;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_os::clock;
use evenkeel_planner::account::answers::Answered;
use evenkeel_planner::account::queries::{self, Asked, Span};
use evenkeel_planner::account::{self, POLICY};
use evenkeel_planner::fleet::Volume;
use evenkeel_planner::format::plain;
use evenkeel_wire::aws::timestamp;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use unfinished::Unfinished;

/// The longest time of a call: the metrics of many days have many pages.
const CALL_MAX: Duration = Duration::from_secs(600);
/// The list of volumes, in the folder of a run.
const LIST: &str = "volumes.json";
/// The folder of the metrics in the folder of a run.
pub const METRICS: &str = "metrics";
/// Prefix of the name of a file with the queries of a call.
const QUERIES_PREFIX: &str = "evenkeel-queries-";

/// Returns the files with the metrics of the volume, if there is only one.
pub fn run(
    arguments: &PlanAws,
    region: Option<&str>,
    format: PlanFormat,
) -> Result<Vec<PathBuf>, Failure> {
    if arguments.print_policy {
        output::print(POLICY)?;
        return Ok(Vec::new());
    }
    let aws = Aws {
        profile: arguments.profile.clone(),
        region: region.map(str::to_owned),
        endpoint_url: arguments.endpoint_url.clone(),
        call_max: CALL_MAX,
    };
    let begins = Unfinished::of(arguments, region, clock::unix_ms().0 / 1_000);
    let folder = Folder::of(arguments, &begins)?;
    let kept = folder.list()?;
    let listed = kept.map_or_else(|| describe(&aws, &arguments.volumes), Ok)?;
    let list = account::volumes(&listed, arguments.policy.as_of, region).map_err(failure)?;
    folder.begin(&listed)?;
    let volumes: Vec<&Volume> = list.volumes.iter().collect();
    let step_s = arguments.step.map_or_else(|| queries::usual_step_s(volumes.len()), u64::from);
    let spans = queries::spans(folder.begun.now_s, arguments.days.into(), step_s);
    eprintln!(
        "{} volumes: metrics of {} days in steps of {step_s} s, to {}",
        volumes.len(),
        arguments.days,
        folder.shown()
    );
    for span in spans {
        let (kept, missing): (Vec<_>, Vec<_>) =
            volumes.iter().copied().partition(|volume| folder.has(volume, span));
        let mut done = kept.len();
        for call in queries::calls(&missing, span) {
            done += call.len();
            metrics(&aws, &folder, &call, span).map_err(|failure| folder.kept(failure))?;
            eprintln!("  {done} of {} volumes, in steps of {} s", volumes.len(), span.step_s);
        }
    }
    unfinished::remove(&folder.path)?;
    eprint!("{}", folder.next_steps(&volumes));
    fleet::run(&folder.fleet(arguments), region, format)?;
    Ok(match volumes.as_slice() {
        [only] => folder.files(only),
        _ => Vec::new(),
    })
}

/// Returns the flags of the plan of one volume, by the policy of the account's.
pub fn plan_of(arguments: &Plan, flags: &PlanAws, files: Vec<PathBuf>) -> Plan {
    let policy = &flags.policy;
    Plan {
        verb: None,
        traces: PlanTraces {
            traces: files,
            assume: Some(policy.assume),
            ..arguments.traces.clone()
        },
        rules: PlanRules {
            as_of: policy.as_of,
            priced: policy.priced.clone(),
            ..arguments.rules.clone()
        },
        wanted: PlanWanted {
            headroom: Some(policy.headroom),
            days_min: policy.days_min,
            types: policy.types.clone(),
            less_durable: policy.less_durable,
            ..arguments.wanted.clone()
        },
        top: arguments.top,
        page: PlanPageFile { html: None },
        output: PlanOutput { format: PlanFormat::Text },
    }
}

/// Returns the text of the list of volumes.
fn describe(aws: &Aws, named: &[String]) -> Result<Vec<u8>, Failure> {
    let mut words = vec!["ec2", "describe-volumes"];
    if !named.is_empty() {
        words.push("--volume-ids");
        words.extend(named.iter().map(String::as_str));
    }
    aws.call(&words)
}

/// Writes the metrics of the volumes of a call: a file for each volume, and one with its queries.
fn metrics(aws: &Aws, folder: &Folder, volumes: &[&Volume], span: Span) -> Result<(), Failure> {
    let asked = queries::asked(volumes);
    let fail = |error: std::io::Error| Failure::new(format!("a file with queries: {error}"));
    let mut file = tempfile::Builder::new().prefix(QUERIES_PREFIX).tempfile().map_err(fail)?;
    file.write_all(queries::text(asked.iter(), span).as_bytes()).map_err(fail)?;
    let path = format!("file://{}", file.path().display());
    let [start, end] = [span.start_s, span.end_s].map(|s| timestamp::extended(s * 1_000));
    let answer = aws.call(&[
        "cloudwatch",
        "get-metric-data",
        "--metric-data-queries",
        &path,
        "--start-time",
        &start,
        "--end-time",
        &end,
        "--scan-by",
        "TimestampAscending",
    ])?;
    let answered = Answered::read(&answer, &asked).map_err(failure)?;
    drop(answer);
    for volume in volumes {
        let of_volume: Vec<&Asked<'_>> =
            asked.iter().filter(|metric| metric.volume == volume.id).collect();
        let Some(text) = answered.of_volume(&of_volume) else { continue };
        let name = format!("{METRICS}/{}{}", volume.id, span.suffix());
        // A run that is continued takes a volume with metrics for done.
        let queries = queries::text(of_volume.into_iter(), span);
        folder.write(&format!("{name}.queries.json"), queries.as_bytes())?;
        folder.write(&format!("{name}.json"), text.as_bytes())?;
    }
    Ok(())
}

/// The folder with the files of a run.
struct Folder {
    path: PathBuf,
    /// The note of the run that began it.
    begun: Unfinished,
}

impl Folder {
    /// Returns the folder that a flag names, or one that is named after the time. It is not made
    /// yet, unless it has files of a run that `begins` may continue.
    ///
    /// # Errors
    /// If it has other files: those of another run would be taken for files of this one.
    fn of(arguments: &PlanAws, begins: &Unfinished) -> Result<Self, Failure> {
        let usual = || PathBuf::from(format!("plan-aws-{}", timestamp::basic(begins.now_s)));
        let path = arguments.folder.clone().unwrap_or_else(usual);
        if let Some(begun) = begins.continued(&path) {
            return Ok(Self { path, begun });
        }
        let is_used = match fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => {
                return Err(Failure::new(format!("{}: {error}", path.display())).exit(Exit::Usage));
            }
        };
        if is_used {
            let message = format!("--folder {} has files already", path.display());
            return Err(Failure::new(message).exit(Exit::Usage).hint(
                "name a new or an empty folder; `evenkeel plan fleet` repeats a plan from its \
                 files. A run that failed is continued with its own flags, within a day",
            ));
        }
        Ok(Self { path, begun: begins.clone() })
    }

    /// Returns the list of volumes, if the run is continued.
    fn list(&self) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.path.join(LIST);
        match fs::read(&path) {
            Ok(listed) => Ok(Some(listed)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::new(format!("{}: {error}", path.display()))),
        }
    }

    /// Makes the folder, with the note of the run and the list of volumes.
    fn begin(&self, listed: &[u8]) -> Result<(), Failure> {
        let metrics = self.path.join(METRICS);
        let made = fs::create_dir_all(&metrics);
        made.map_err(|error| Failure::new(format!("{}: {error}", metrics.display())))?;
        self.write(unfinished::NAME, self.begun.text().as_bytes())?;
        self.write(LIST, listed)
    }

    /// Writes a file. It is there as a whole or not at all, because a run that is continued does
    /// not ask for it again.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.path.join(name);
        let draft = path.with_extension("new");
        let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&draft);
            Failure::new(format!("{}: {error}", path.display()))
        })
    }

    /// Returns the file with the metrics of a volume in a span.
    fn file(&self, volume: &Volume, suffix: &str) -> PathBuf {
        self.path.join(METRICS).join(format!("{}{suffix}.json", volume.id))
    }

    fn has(&self, volume: &Volume, span: Span) -> bool {
        self.file(volume, span.suffix()).is_file()
    }

    /// Returns the files with the metrics of a volume.
    fn files(&self, volume: &Volume) -> Vec<PathBuf> {
        let all = [queries::LONG_SUFFIX, ""].map(|suffix| self.file(volume, suffix));
        all.into_iter().filter(|file| file.is_file()).collect()
    }

    /// Adds to a failure that files were kept.
    fn kept(&self, failure: Failure) -> Failure {
        let folder = self.shown();
        let message = format!(
            "{}; the files so far are in {folder}: the run is continued with --folder {folder} and \
             its other flags",
            failure.message
        );
        Failure { message, ..failure }
    }

    fn shown(&self) -> String {
        plain(&self.path.display().to_string())
    }

    /// Returns the flags of the plan of these files.
    fn fleet(&self, arguments: &PlanAws) -> PlanFleet {
        PlanFleet {
            volumes: self.path.join(LIST),
            metrics: has_files(&self.path.join(METRICS)).then(|| self.path.join(METRICS)),
            policy: arguments.policy.clone(),
            allow_partial: false,
            used: Vec::new(),
            instances: None,
            group_by: None,
            jobs: None,
            top: arguments.top,
            commands: arguments.commands.clone(),
            risk_max: arguments.risk_max,
            page: PlanPageFile { html: None },
        }
    }

    /// Returns the commands that repeat the plan, and that plan one of its volumes.
    fn next_steps(&self, volumes: &[&Volume]) -> String {
        let folder = self.shown();
        let mut text =
            format!("again: evenkeel plan fleet {folder}/{LIST} --metrics {folder}/{METRICS}\n");
        let files = volumes.iter().map(|volume| self.files(volume)).find(|all| !all.is_empty());
        if let Some(files) = files {
            let names = files.iter().map(|file| plain(&file.display().to_string()));
            text += &format!("one volume: evenkeel plan {}\n", names.collect::<Vec<_>>().join(" "));
        }
        text
    }
}

fn has_files(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
