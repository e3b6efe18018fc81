//! The settings that all nodes of a cluster must share, as each node publishes them in etcd.

use crate::Config;
use evenkeel_client::output::Failure;
use evenkeel_control::{AccountQuotas, ModifyPolicy, Settings};
use std::collections::BTreeMap;

/// Returns the settings of this node that must be equal on all nodes, by the names of their flags.
///
/// Limits of the API's own load (`--api-rate`, `--api-host`) and properties of a machine (cores,
/// addresses, priorities) may differ, and are left out.
///
/// # Errors
/// The key file cannot be read.
pub fn published(config: &Config) -> Result<BTreeMap<String, String>, Failure> {
    let Settings {
        region,
        zones,
        account,
        any_region,
        recycle_bin_days,
        record_days,
        rules,
        modify_policy,
        quotas,
        account_quotas,
        figure,
        oversell,
        space_oversell,
        ..
    } = &config.settings;
    let policy = match modify_policy {
        ModifyPolicy::Immediate => "immediate",
        ModifyPolicy::Aws => "aws",
        ModifyPolicy::Aws2026 => "aws-2026",
        ModifyPolicy::AwsClassic => "aws-classic-6h",
    };
    let mut oversold: Vec<String> =
        oversell.iter().map(|(kind, factor)| format!("{kind}={factor}")).collect();
    oversold.sort_unstable();
    let mut published = BTreeMap::new();
    let mut publish = |name: &str, value: String| published.insert(name.to_owned(), value);
    publish("region", region.clone());
    publish("zone", zones.join(","));
    publish("account", account.clone());
    publish("any-region", any_region.to_string());
    publish("recycle-bin-days", recycle_bin_days.to_string());
    publish("record-days", record_days.to_string());
    publish("as-of", rules.date().to_string());
    publish("modify-policy", policy.to_owned());
    let AccountQuotas { iops, mibps, gib } = *account_quotas;
    let amount = |name: &str, amount: Option<u64>| amount.map(|amount| format!("{name}={amount}"));
    let listed = [amount("iops", iops), amount("throughput", mibps), amount("size", gib)];
    let ec2 = quotas.map(|_| "ec2".to_owned());
    let listed: Vec<String> = ec2.into_iter().chain(listed.into_iter().flatten()).collect();
    publish("quotas", if listed.is_empty() { "none".to_owned() } else { listed.join(",") });
    publish("oversell", oversold.join(","));
    publish("oversell-space", space_oversell.to_string());
    // Every node opens the encrypted volumes of the others. The id does not reveal the key, and is
    // in the API's answers. All key commands have the same id.
    if let Some(keys) = config.store_options.keys()? {
        publish("key", keys.id());
    }
    publish("no-guarantee", (!config.guarantee).to_string());
    // Nodes relay requests to the leader's API by the same scheme.
    if config.transport.files.is_some() {
        publish("tls-cert", "true".to_owned());
    }
    if let Some(figure) = figure {
        publish("sell-iops", figure.operations_per_second().to_string());
        publish("sell-throughput", figure.mibps().to_string());
    }
    Ok(published)
}
