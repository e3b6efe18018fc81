//! `deploy/`: rules for Prometheus and a dashboard for Grafana, made of tables of alerts and
//! panels. A test of the control plane holds every name in them to what `/metrics` reports.

use std::path::Path;

mod alerts;
mod dashboard;
mod page;
mod panels;
mod rules;

/// The scrape job's name. Rules that ask whether a server answers cannot do without.
const JOB: &str = "evenkeel";

/// In the address of the dashboard.
const DASHBOARD_UID: &str = "evenkeel";

/// Where the runbooks are: the home of the project (`repository` in Cargo.toml), and this page.
const HOME: &str = "https://evenkeel.dev";
const PAGE: &str = "docs/reference/alerts.md";

/// The address of an alert's runbook.
fn runbook(alert: &alerts::Alert) -> String {
    format!("{HOME}/{PAGE}#{}", alert.name.to_lowercase())
}

/// Each generated file with what is in it.
pub fn files() -> Result<[(&'static str, String); 4], String> {
    Ok([
        ("deploy/prometheus/evenkeel.rules.yml", rules::rules()),
        ("deploy/prometheus/prometheus.yml", rules::scrape()),
        ("deploy/grafana/evenkeel.json", dashboard::json()?),
        (PAGE, page::markdown()),
    ])
}

/// Writes each anew.
pub fn regenerate(root: &Path) -> Result<(), String> {
    for (path, text) in files()? {
        let file = root.join(path);
        let folder = file.parent().unwrap_or(root);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&file, text))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        println!("wrote {path}");
    }
    Ok(())
}
