//! Checks that every property test notices a broken rule. Each mutation breaks one rule in a copy
//! of the sources and runs the test that must fail.

pub mod list;

use self::list::{LISTS, Mutation, mutations};
use crate::run;
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// Time limit of a test, in seconds. A mutation that makes the test hang counts as caught.
const TEST_SECONDS_MAX: u32 = 240;

/// Time limit of a build, in seconds. The first builds everything, perhaps on a busy machine.
const BUILD_SECONDS_MAX: u32 = 1_800;

/// Exit code of coreutils' `timeout` after the time limit.
const TIMED_OUT: i32 = 124;

/// The text that seeded tests print in front of their failing seed.
const SEED: &str = "EVENKEEL_SEED=";

/// Number of copies in which rules are broken side by side. Each takes about 0.5 GB on the disk.
const COPIES_MAX: usize = 4;

/// Breaks every rule, or only those of the named lists and properties, and prints a table.
pub fn run(root: &Path, wanted: &[&str]) -> Result<(), String> {
    let mut chosen = Vec::new();
    for (name, list) in LISTS {
        let is_wanted =
            |property| wanted.is_empty() || wanted.contains(&name) || wanted.contains(&property);
        chosen.extend(mutations(list)?.into_iter().filter(|it| is_wanted(it.property)));
    }
    println!("| property | rule broken | caught by |\n| ---: | --- | --- |");
    let copies_max = thread::available_parallelism().map_or(1, NonZero::get).min(COPIES_MAX);
    let work = Work { left: Mutex::new(chosen.into()), passing: Mutex::default() };
    let missed = thread::scope(|scope| {
        let start = |copy: usize| {
            let place = root.join(format!("target/mutations/{copy}"));
            let work = &work;
            scope.spawn(move || work.take(root, &place))
        };
        let workers: Vec<_> = (1..=copies_max).map(start).collect();
        let mut missed = Vec::new();
        for worker in workers {
            missed.extend(worker.join().map_err(|_| "a thread of mutations panicked")??);
        }
        Ok::<_, String>(missed)
    })?;
    if missed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "mutations of properties {} were not caught: the tests named do not guard the rules",
        missed.join(", ")
    ))
}

/// The rules that are left, and the tests that pass, of all copies.
struct Work<'a> {
    /// The rules that no copy has broken yet.
    left: Mutex<VecDeque<Mutation<'a>>>,
    /// Tests that pass without a broken rule.
    passing: Mutex<BTreeSet<String>>,
}

impl Work<'_> {
    /// Breaks one rule after the other in a copy in `place`, and prints the rows of the table.
    /// Returns the properties whose mutations no test notices.
    fn take(&self, root: &Path, place: &Path) -> Result<Vec<String>, String> {
        let copy = Copy::new(root, place)?;
        let mut missed = Vec::new();
        loop {
            let next = self.left.lock().expect("not poisoned").pop_front();
            let Some(mutation) = next else { return Ok(missed) };
            let caught = copy.catches(&mutation, &self.passing).inspect_err(|_| {
                // The other copies end with their present rule.
                self.left.lock().expect("not poisoned").clear();
            })?;
            let by = match &caught {
                Some(Some(seed)) => format!("`{}`, seed {seed}", mutation.test),
                Some(None) => format!("`{}`", mutation.test),
                None => "**nothing**".to_string(),
            };
            println!("| {} | {} | {by} |", mutation.property, mutation.rule);
            if caught.is_none() {
                missed.push(mutation.property.to_string());
            }
        }
    }
}

/// A copy of the sources in which rules are broken.
pub struct Copy {
    folder: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Creates a copy in `place`, with a target folder of its own beside it.
    pub fn new(root: &Path, place: &Path) -> Result<Self, String> {
        let folder = place.join("sources");
        let target = place.join("target");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let files = run::output(Command::new("git").current_dir(root).args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        for file in files.lines() {
            let from = root.join(file);
            let to = folder.join(file);
            if !from.is_file() {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(|error| format!("{file}: {error}"))?;
            }
            fs::copy(&from, &to).map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(Self { folder, target })
    }

    /// Returns the target folder.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Breaks a rule, calls `then` with the folder of the sources, and restores the rule.
    pub fn with_broken<T>(
        &self,
        mutation: &Mutation<'_>,
        then: impl FnOnce(&Path) -> T,
    ) -> Result<T, String> {
        let file = self.folder.join(mutation.file);
        let whole = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        if whole.matches(mutation.before).count() != 1 {
            return Err(format!(
                "property {}: {} does not contain exactly one `{}`: bring the list of mutations up \
                 to date",
                mutation.property, mutation.file, mutation.before
            ));
        }
        let broken = whole.replace(mutation.before, mutation.after);
        let write = |text: &str| fs::write(&file, text).map_err(|e| format!("{e}"));
        write(&broken)?;
        let result = then(&self.folder);
        write(&whole)?;
        Ok(result)
    }

    /// Returns the seed at which the test fails with the broken rule, if it printed one; `None` if
    /// it does not fail. A test that fails without the mutation, too, is an error.
    fn catches(
        &self,
        mutation: &Mutation<'_>,
        passing: &Mutex<BTreeSet<String>>,
    ) -> Result<Option<Option<String>>, String> {
        let tested = self.with_broken(mutation, |_| self.build_and_test(mutation))?;
        let (code, seed) = tested?;
        if code == Some(TIMED_OUT) {
            return Ok(Some(None));
        }
        let tested = format!("{} {}", mutation.test, mutation.histories.unwrap_or_default());
        if !passing.lock().expect("not poisoned").contains(&tested) {
            let Mutation { property, test, .. } = mutation;
            match self.build_and_test(mutation)?.0 {
                Some(0) => {}
                Some(TIMED_OUT) => {
                    return Err(format!(
                        "property {property}: {test} without the mutation takes more than \
                         {TEST_SECONDS_MAX} s; repeat it while the machine is less busy"
                    ));
                }
                _ => {
                    return Err(format!(
                        "property {property}: {test} fails without the mutation, too"
                    ));
                }
            }
            passing.lock().expect("not poisoned").insert(tested);
        }
        Ok((code != Some(0)).then_some(seed))
    }

    /// Builds the test and runs it. Returns its exit code, and the seed that it printed.
    fn build_and_test(
        &self,
        mutation: &Mutation<'_>,
    ) -> Result<(Option<i32>, Option<String>), String> {
        let property = mutation.property;
        match self.cargo(mutation, &["--no-run"], BUILD_SECONDS_MAX)?.0 {
            Some(0) => self.cargo(mutation, &[], TEST_SECONDS_MAX),
            Some(TIMED_OUT) => Err(format!(
                "property {property}: the build takes more than {BUILD_SECONDS_MAX} s; repeat it \
                 while the machine is less busy"
            )),
            _ => Err(format!("property {property}: the mutation does not compile")),
        }
    }

    /// Runs cargo for the test. Returns its exit code, and the seed that the test printed.
    fn cargo(
        &self,
        mutation: &Mutation<'_>,
        more: &[&str],
        seconds_max: u32,
    ) -> Result<(Option<i32>, Option<String>), String> {
        let mut arguments = vec!["test", "--quiet", "-p"];
        arguments.extend(mutation.test.split(' '));
        arguments.extend(more);
        let mut command = run::bounded(&run::cargo(&self.folder, &arguments), seconds_max);
        command
            .env("CARGO_TARGET_DIR", &self.target)
            // A mutation changes one line of a crate, and nothing steps through the result.
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            // The variable of this process belongs to this program.
            .env_remove("CARGO_MANIFEST_DIR")
            .env("PROPTEST_FAILURE_PERSISTENCE", "off")
            .stderr(Stdio::null());
        if let Some(histories) = mutation.histories {
            command.env("EVENKEEL_FUZZ_CASES", histories);
        }
        let output = command.output().map_err(|error| format!("{error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let seed = text
            .split_once(SEED)
            .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        Ok((output.status.code(), seed))
    }
}
