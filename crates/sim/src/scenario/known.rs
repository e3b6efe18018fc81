//! Properties of volumes that need no run: their price, their durability, the limits of their type.

use crate::text;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{
    Date, IopsRule, Rules, ThroughputRule, TypeRules, VolumeRequest, VolumeSpec,
};

/// Exclusive limit on IOPS: no type has as many in any rulebook.
const IOPS_END: u32 = 1 << 24;

/// A property of one or several volumes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// List price in US dollars a month of 30 days.
    MonthlyUsd,
    /// Chance in percent that all of them are whole after a year, each in the middle of the range
    /// that is published for its type: a stripe is lost with any one of its volumes.
    DurabilityPercent,
    /// I/O credits when all buckets are full.
    CreditsFull,
    /// The most IOPS that volumes of these types may have, whatever their size.
    IopsMax,
    /// The most IOPS with which volumes of these types and sizes can be created.
    IopsAllowed,
    /// IOPS that they have without credits.
    IopsBase,
    /// The most MiB per second that volumes of these types may have, whatever their size.
    MibpsMax,
}

impl Known {
    /// Each by the word that scenarios use.
    pub const WORDS: [(&'static str, Self); 7] = [
        ("monthly_usd", Self::MonthlyUsd),
        ("durability_percent", Self::DurabilityPercent),
        ("credits_full", Self::CreditsFull),
        ("iops_max", Self::IopsMax),
        ("iops_allowed", Self::IopsAllowed),
        ("iops_base", Self::IopsBase),
        ("mibps_max", Self::MibpsMax),
    ];

    /// Computes the property of `volumes` by the rules and the price list in force on a day.
    ///
    /// # Errors
    /// Returns an error if the day has no rules or no price list, or if they lack it for a type.
    pub fn of(self, volumes: &[VolumeSpec], as_of: Date) -> Result<f64, String> {
        let rules = Rules::as_of(as_of).map_err(|error| error.to_string())?;
        let each = |figure: fn(&TypeRules) -> Option<f64>| {
            let of_type = move |spec: &VolumeSpec| {
                let name = spec.volume_type;
                let found = rules.of(name).and_then(figure);
                found.ok_or_else(|| format!("none is stated for {name} by the rules of {as_of}"))
            };
            volumes.iter().map(of_type)
        };
        match self {
            Self::MonthlyUsd => monthly_usd(volumes, as_of),
            Self::DurabilityPercent => {
                let whole: f64 = each(durability).product::<Result<f64, _>>()?;
                // Rounded to seven decimals, so that it equals the published figure in floating
                // point.
                Ok((whole * 1e7).round() / 1e5)
            }
            Self::CreditsFull => {
                let limits = volumes.iter().filter_map(|spec| rules.pacing(spec).operations);
                let credits = limits.filter_map(|limit| limit.credit);
                Ok(credits.map(|credit| credit.capacity).sum::<u64>() as f64)
            }
            Self::IopsMax => each(iops_max).sum(),
            Self::MibpsMax => each(|rules| Some(mibps_max(rules))).sum(),
            Self::IopsBase => {
                let limits = volumes.iter().filter_map(|spec| rules.pacing(spec).operations);
                Ok(limits.map(|limit| limit.sustained_per_second()).sum::<u64>() as f64)
            }
            Self::IopsAllowed => {
                let each = volumes.iter().map(|spec| iops_allowed(rules, spec));
                Ok(f64::from(each.sum::<Result<u32, _>>()?))
            }
        }
    }

    /// Formats a figure with its unit.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::MonthlyUsd => usd(value),
            Self::DurabilityPercent => {
                let digits = format!("{value:.5}");
                format!("{} %", digits.trim_end_matches('0').trim_end_matches('.'))
            }
            Self::CreditsFull => format!("{} credits", text::rate(value)),
            Self::IopsMax | Self::IopsAllowed | Self::IopsBase => {
                format!("{} IOPS", text::rate(value))
            }
            Self::MibpsMax => format!("{} MiB/s", text::rate(value)),
        }
    }

    /// Returns its name in results.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::MonthlyUsd => "price of a month",
            Self::DurabilityPercent => "durability over a year",
            Self::CreditsFull => "I/O credits when full",
            Self::IopsMax => "most IOPS of the type",
            Self::IopsAllowed => "most IOPS of the type and size",
            Self::IopsBase => "IOPS without credits",
            Self::MibpsMax => "most MiB/s of the type",
        }
    }
}

fn monthly_usd(volumes: &[VolumeSpec], as_of: Date) -> Result<f64, String> {
    let list = PriceList::as_of(as_of).map_err(|error| error.to_string())?;
    let each = volumes.iter().map(|spec| {
        list.monthly_micro_usd(spec).ok_or_else(|| {
            let name = spec.volume_type;
            let date = list.date();
            format!("no price of {name} is known for {as_of}: the list in force is of {date}")
        })
    });
    let micro_usd: u64 = each.sum::<Result<_, String>>()?;
    Ok(micro_usd as f64 / 1e6)
}

fn durability(rules: &TypeRules) -> Option<f64> {
    let range = rules.promise.durability?;
    Some(f64::from(range.min_ppm + range.max_ppm) / 2e6)
}

fn iops_max(rules: &TypeRules) -> Option<f64> {
    match rules.iops {
        IopsRule::Ceiling { max }
        | IopsRule::FromSize { max, .. }
        | IopsRule::Provisioned { max, .. } => Some(max.into()),
        IopsRule::Uncounted => None,
    }
}

fn mibps_max(rules: &TypeRules) -> f64 {
    f64::from(match rules.throughput {
        ThroughputRule::Provisioned { max_mibps, .. }
        | ThroughputRule::Piecewise { max_mibps, .. } => max_mibps,
        ThroughputRule::Credits { burst_max_mibps, .. } => burst_max_mibps,
    })
}

/// Finds the limit by a binary search over requests, so that a rule that is stated but not enforced
/// would show.
fn iops_allowed(rules: &Rules, spec: &VolumeSpec) -> Result<u32, String> {
    let VolumeSpec { volume_type, size_gib, throughput_mibps, multi_attach, .. } = *spec;
    let is_accepted = |iops| {
        let iops = Some(iops);
        let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        rules.resolve(&request).is_ok()
    };
    let Some(mut accepted) = spec.iops.filter(|iops| is_accepted(*iops)) else {
        let date = rules.date();
        return Err(format!("no IOPS are asked for of {volume_type} by the rules of {date}"));
    };
    let mut refused = IOPS_END;
    while refused - accepted > 1 {
        let middle = accepted + (refused - accepted) / 2;
        if is_accepted(middle) { accepted = middle } else { refused = middle }
    }
    Ok(accepted)
}

/// Formats dollars to the cent, or to a tenth of a cent if there is a part of one.
fn usd(value: f64) -> String {
    let mills = (value * 1e3).round() as u64;
    let dollars = text::thousands(mills / 1_000);
    let rest = mills % 1_000;
    match rest % 10 {
        0 => format!("${dollars}.{:02}", rest / 10),
        _ => format!("${dollars}.{rest:03}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::volume::{VolumeRequest, VolumeType};

    const DAY: Date = Date { year: 2021, month: 7, day: 31 };

    fn volume(volume_type: VolumeType, iops: Option<u32>) -> VolumeSpec {
        let request = VolumeRequest {
            volume_type,
            size_gib: 500,
            iops,
            throughput_mibps: None,
            multi_attach: false,
        };
        Rules::as_of(DAY).unwrap().resolve(&request).unwrap()
    }

    #[test]
    fn prices_are_those_of_the_day_to_the_cent() {
        use VolumeType::{Gp2, Gp3, Io1, Io2};
        let price = |volumes: &[VolumeSpec]| Known::MonthlyUsd.of(volumes, DAY);
        assert_eq!(price(&[volume(Gp2, None)]), Ok(50.0));
        assert_eq!(price(&[volume(Gp3, Some(4_015))]), Ok(45.075));
        assert_eq!(price(&[volume(Io1, Some(3_000)), volume(Io2, Some(16_000))]), Ok(1_360.0));
        let early = Date { year: 2016, month: 11, day: 1 };
        let error = Known::MonthlyUsd.of(&[volume(Gp3, None)], early).unwrap_err();
        assert_eq!(
            error,
            "no price of gp3 is known for 2016-11-01: the list in force is of 2014-06-17"
        );
        let error = Known::MonthlyUsd.of(&[], Date { year: 2012, ..early }).unwrap_err();
        assert!(error.starts_with("no prices of us-east-1 are known for 2012-11-01"), "{error}");
    }

    /// Compared with the exact power of the exact middle, in whole numbers.
    #[test]
    fn a_stripe_is_as_durable_as_all_its_volumes_together() {
        for n in 1..=5 {
            let exact = 998_500_u128.pow(n);
            let rounded = exact * 100 * 100_000 * 2 / 1_000_000_u128.pow(n) + 1;
            let volumes = vec![volume(VolumeType::Gp3, None); n as usize];
            let found = Known::DurabilityPercent.of(&volumes, DAY).unwrap();
            assert_eq!(found, (rounded / 2) as f64 / 1e5, "{n}");
        }
        let five = [volume(VolumeType::Gp2, None); 5];
        assert_eq!(Known::DurabilityPercent.of(&five, DAY), Ok(99.252_25));
        let five = [volume(VolumeType::Io2, Some(1_000)); 5];
        assert_eq!(Known::DurabilityPercent.of(&five[..1], DAY), Ok(99.999));
        assert_eq!(Known::DurabilityPercent.of(&five, DAY), Ok(99.995));
        let error = Known::DurabilityPercent.of(&[volume(VolumeType::Standard, None)], DAY);
        assert_eq!(error, Err("none is stated for standard by the rules of 2021-07-31".to_owned()));
    }

    #[test]
    fn limits_of_a_type_are_known() {
        use VolumeType::{Gp2, Gp3, Io1, Io2, St1};
        let most = |t, iops| Known::IopsMax.of(&[volume(t, iops)], DAY);
        assert_eq!((most(Gp2, None), most(Gp3, None)), (Ok(16_000.0), Ok(16_000.0)));
        assert_eq!((most(Io1, Some(100)), most(Io2, Some(100))), (Ok(64_000.0), Ok(64_000.0)));
        assert!(most(St1, None).is_err(), "its bytes are counted");
        let credits = |volumes: &[VolumeSpec]| Known::CreditsFull.of(volumes, DAY);
        assert_eq!(credits(&[volume(Gp2, None); 5]), Ok(27_000_000.0));
        assert_eq!(credits(&[volume(Gp3, None)]), Ok(0.0));
    }

    /// As the articles state them, by the rules of their days.
    #[test]
    fn limits_of_a_size_are_known() {
        let known = |known: Known, volume_type, size_gib, iops, as_of: &str| {
            let as_of: Date = as_of.parse().unwrap();
            let throughput_mibps = None;
            let multi_attach = false;
            let request =
                VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
            known.of(&[Rules::as_of(as_of).unwrap().resolve(&request).unwrap()], as_of)
        };
        use Known::{IopsAllowed, IopsBase, MibpsMax};
        use VolumeType::{Gp2, Gp3, Io1};
        for (size_gib, iops) in [(10, 100.0), (50, 500.0), (99, 990.0), (100, 1_000.0)] {
            assert_eq!(known(IopsAllowed, Io1, size_gib, Some(100), "2012-08-31"), Ok(iops));
        }
        let error = known(IopsAllowed, Gp2, 100, None, "2016-06-30");
        assert_eq!(error, Err("no IOPS are asked for of gp2 by the rules of 2016-04-18".into()));
        for (size_gib, iops) in [(33, 100.0), (167, 501.0), (1_000, 3_000.0), (1_024, 3_072.0)] {
            assert_eq!(known(IopsBase, Gp2, size_gib, None, "2016-06-30"), Ok(iops));
        }
        assert_eq!(known(IopsBase, Io1, 100, Some(700), "2016-06-30"), Ok(700.0));
        assert_eq!(known(MibpsMax, Gp2, 100, None, "2016-06-30"), Ok(160.0));
        assert_eq!(known(MibpsMax, Gp2, 100, None, "2021-07-31"), Ok(250.0));
        assert_eq!(known(MibpsMax, Gp3, 100, None, "2021-07-31"), Ok(1_000.0));
        let credits = |size_gib| known(Known::CreditsFull, Gp2, size_gib, None, "2021-07-31");
        assert_eq!((credits(999), credits(1_000)), (Ok(5_400_000.0), Ok(0.0)));
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(Known::MonthlyUsd.shown(1_102.5), "$1,102.50");
        assert_eq!(Known::MonthlyUsd.shown(50.075), "$50.075");
        assert_eq!(Known::MonthlyUsd.shown(0.0), "$0.00");
        assert_eq!(Known::DurabilityPercent.shown(99.85), "99.85 %");
        assert_eq!(Known::DurabilityPercent.shown(99.252_25), "99.25225 %");
        assert_eq!(Known::DurabilityPercent.shown(100.0), "100 %");
        assert_eq!(Known::CreditsFull.shown(5_400_000.0), "5,400,000 credits");
    }
}
