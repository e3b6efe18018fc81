//! Layout and state of a pool on several machines. A calibration is valid for one layout, and is
//! measured in more than one state.

use serde::{Deserialize, Serialize};

/// Layout of a pool. The fields are also those of a calibration's record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// The id of the cluster.
    pub cluster: String,
    /// The pool's name.
    pub pool: String,
    /// The name of the rule that places its bytes.
    pub rule: String,
    /// The failure domain, such as `host`, that two copies never share.
    pub domain: String,
    /// Copies of each byte.
    pub copies: u32,
    /// Copies that must be available for a write.
    pub copies_min: u32,
    /// Devices that the rule may choose, whether they are up or not.
    pub devices: u32,
    /// Mechanism that decides between clients and recovery on the devices, in the cluster's words;
    /// `None` if it is not known.
    pub recovery: Option<String>,
}

impl Layout {
    /// Returns the differences between this layout and `now` that matter for a calibration; empty
    /// if there are none. A value that either of them does not know is no difference.
    #[must_use]
    pub fn changes(&self, now: &Self) -> Vec<String> {
        let names = |it: &Self| format!("{} of {}", it.pool, it.cluster);
        let recovery = match (&self.recovery, &now.recovery) {
            (Some(before), Some(now)) => [before.clone(), now.clone()],
            _ => Default::default(),
        };
        [
            ("the pool", [names(self), names(now)]),
            ("the CRUSH rule", [self.rule.clone(), now.rule.clone()]),
            ("the failure domain", [self.domain.clone(), now.domain.clone()]),
            ("the number of copies", [self.copies, now.copies].map(|count| count.to_string())),
            ("min_size", [self.copies_min, now.copies_min].map(|count| count.to_string())),
            ("the number of OSDs", [self.devices, now.devices].map(|count| count.to_string())),
            ("what holds recovery back", recovery),
        ]
        .into_iter()
        .filter(|(_, [before, now])| before != now)
        .map(|(what, [before, now])| format!("{what} was {before} and is {now}"))
        .collect()
    }
}

/// State of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolState {
    /// All devices serve, and all copies exist.
    Healthy,
    /// The largest failure domain is lost, and its copies are not being restored yet.
    Degraded {
        /// Description of the loss.
        lost: String,
    },
    /// Copies are being made, while clients are served.
    Recovering,
    /// Any other state, in words.
    Other(String),
}

/// A pool and its present state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSeen {
    /// Its layout.
    pub layout: Layout,
    /// Its state.
    pub state: PoolState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_changes_are_named_and_unknown_fields_are_no_change() {
        let before = Layout {
            cluster: "c".to_owned(),
            pool: "p".to_owned(),
            rule: "r".to_owned(),
            domain: "host".to_owned(),
            copies: 3,
            copies_min: 2,
            devices: 12,
            recovery: Some("wpq".to_owned()),
        };
        assert_eq!(before.changes(&before), [""; 0]);
        assert_eq!(before.changes(&Layout { recovery: None, ..before.clone() }), [""; 0]);
        let now = Layout {
            rule: "s".to_owned(),
            devices: 13,
            recovery: Some("mclock_scheduler, balanced".to_owned()),
            ..before.clone()
        };
        assert_eq!(
            before.changes(&now),
            [
                "the CRUSH rule was r and is s",
                "the number of OSDs was 12 and is 13",
                "what holds recovery back was wpq and is mclock_scheduler, balanced",
            ]
        );
        let elsewhere = Layout { cluster: "d".to_owned(), ..before.clone() };
        assert_eq!(before.changes(&elsewhere), ["the pool was p of c and is p of d"]);
    }
}
