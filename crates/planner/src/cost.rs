//! Monthly cost of volumes and their snapshots, by group, in millionths of a currency unit, and in
//! cents that still add up.

pub mod report;

use evenkeel_core::convert::saturating;
use std::collections::BTreeMap;

use evenkeel_core::price::{Cost, MICROS_PER_CENT, PriceList, half_up};
use evenkeel_core::volume::VolumeSpec;

const BYTES_PER_GIB: u128 = 1 << 30;

/// A monthly cost by item, in millionths of a currency unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Items {
    /// Capacity of volumes.
    pub storage: u64,
    /// Provisioned IOPS.
    pub iops: u64,
    /// Provisioned throughput.
    pub throughput: u64,
    /// Data of snapshots.
    pub snapshots: u64,
}

impl Items {
    /// Returns all items, in the order in which they are printed.
    #[must_use]
    pub const fn all(&self) -> [u64; 4] {
        [self.storage, self.iops, self.throughput, self.snapshots]
    }

    /// Returns their sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.all().into_iter().fold(0, u64::saturating_add)
    }

    fn add(&mut self, other: &Self) {
        self.storage = self.storage.saturating_add(other.storage);
        self.iops = self.iops.saturating_add(other.iops);
        self.throughput = self.throughput.saturating_add(other.throughput);
        self.snapshots = self.snapshots.saturating_add(other.snapshots);
    }
}

impl From<Cost> for Items {
    fn from(cost: Cost) -> Self {
        let Cost { storage, iops, throughput } = cost;
        Self { storage, iops, throughput, snapshots: 0 }
    }
}

/// The storage tier of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// The standard tier.
    Standard,
    /// The archive.
    Archive,
    /// The archive, and restored for some days: AWS charges both.
    Restored,
}

/// A volume, a snapshot, or the sum of many of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// Number of volumes.
    pub volumes: u64,
    /// Size of the volumes in GiB.
    pub gib: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Number of snapshots that are archived, restored for some days or not.
    pub archived: u64,
    /// Data of the snapshots in bytes.
    pub snapshot_bytes: u64,
    /// Monthly cost by a price list.
    pub list: Items,
    /// Number of volumes and snapshots without a price in the list. They cost nothing in `list`.
    pub unpriced: u64,
    /// Monthly cost on the operator's own hardware, by its price book, in millionths.
    pub own: u64,
}

impl Line {
    /// Returns a volume at list price.
    #[must_use]
    pub fn volume(prices: &PriceList, spec: &VolumeSpec) -> Self {
        let cost = prices.of(spec.volume_type).and_then(|prices| prices.monthly(spec));
        Self {
            volumes: 1,
            gib: spec.size_gib.into(),
            list: cost.map(Items::from).unwrap_or_default(),
            unpriced: cost.is_none().into(),
            ..Self::default()
        }
    }

    /// Returns a snapshot with `bytes` of data in a tier at its monthly list price, rounded half
    /// up.
    #[must_use]
    pub fn snapshot(prices: &PriceList, bytes: u64, tier: Tier) -> Self {
        let price = prices.snapshot().map(|prices| match tier {
            Tier::Standard => prices.gib_month,
            Tier::Archive => prices.archive_gib_month,
            Tier::Restored => prices.gib_month.saturating_add(prices.archive_gib_month),
        });
        let whole = u128::from(price.unwrap_or_default()) * u128::from(bytes);
        let snapshots = (whole + BYTES_PER_GIB / 2) / BYTES_PER_GIB;
        let snapshots = saturating::<_, u64>(snapshots);
        Self {
            snapshots: 1,
            archived: (tier != Tier::Standard).into(),
            snapshot_bytes: bytes,
            list: Items { snapshots, ..Items::default() },
            unpriced: price.is_none().into(),
            ..Self::default()
        }
    }

    /// Adds another line.
    pub fn add(&mut self, other: &Self) {
        self.volumes += other.volumes;
        self.gib = self.gib.saturating_add(other.gib);
        self.snapshots += other.snapshots;
        self.archived += other.archived;
        self.snapshot_bytes = self.snapshot_bytes.saturating_add(other.snapshot_bytes);
        self.list.add(&other.list);
        self.unpriced += other.unpriced;
        self.own = self.own.saturating_add(other.own);
    }
}

/// Sums `lines` by group. The dearest group comes first, and equal ones by name.
pub fn grouped<G: Ord>(lines: impl IntoIterator<Item = (G, Line)>) -> Vec<(G, Line)> {
    let mut groups: BTreeMap<G, Line> = BTreeMap::new();
    for (group, line) in lines {
        groups.entry(group).or_default().add(&line);
    }
    let mut groups: Vec<(G, Line)> = groups.into_iter().collect();
    // The sort is stable: groups of equal cost stay in the order of names.
    groups.sort_by_key(|(_, line)| std::cmp::Reverse((line.own, line.list.total())));
    groups
}

/// A table of amounts in cents, each within a cent of the exact amount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cents {
    /// The cells of each row.
    pub rows: Vec<Vec<u64>>,
    /// Sum of each column.
    pub columns: Vec<u64>,
    /// Sum of all cells: the exact sum, rounded half up.
    pub total: u64,
}

/// Rounds amounts to cents that add up by row and by column: the cells with the largest remainders
/// are rounded up. The sum of a row is that of its cells.
#[must_use]
pub fn in_cents(rows: &[Vec<u64>]) -> Cents {
    let width = rows.iter().map(Vec::len).max().unwrap_or_default();
    let cell = |row: &[u64], column: usize| row.get(column).copied().unwrap_or_default();
    let column = |at: usize| rows.iter().map(|row| cell(row, at)).collect::<Vec<u64>>();
    let sums: Vec<u64> =
        (0..width).map(|number| column(number).into_iter().fold(0, u64::saturating_add)).collect();
    let whole = sums.iter().copied().fold(0, u64::saturating_add);
    let total = half_up(whole);
    let columns = apportioned(&sums, total);
    let mut table = vec![Vec::with_capacity(width); rows.len()];
    for (at, sum) in columns.iter().enumerate() {
        for (row, cents) in table.iter_mut().zip(apportioned(&column(at), *sum)) {
            row.push(cents);
        }
    }
    Cents { rows: table, columns, total }
}

/// Distributes `cents` over these amounts: each is rounded down, and those with the largest
/// remainders get one cent more, while any are left.
#[must_use]
pub fn apportioned(amounts: &[u64], cents: u64) -> Vec<u64> {
    let mut shares: Vec<u64> = amounts.iter().map(|amount| amount / MICROS_PER_CENT).collect();
    let given = shares.iter().copied().fold(0, u64::saturating_add);
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_by_key(|order| std::cmp::Reverse(amounts[*order] % MICROS_PER_CENT));
    let left = saturating::<_, usize>(cents.saturating_sub(given));
    for at in order.into_iter().take(left) {
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::layout;

    fn volume(volume_type: VolumeType, size_gib: u32, iops: Option<u32>) -> Line {
        Line::volume(PriceList::newest(), &layout(1, volume_type, size_gib, iops).each)
    }

    #[test]
    fn groups_are_sums_and_the_dearest_comes_first() {
        let lines = [
            ("b", volume(VolumeType::Gp3, 100, Some(4_000))),
            ("a", volume(VolumeType::Gp2, 100, None)),
            ("c", volume(VolumeType::Gp2, 80, None)),
            ("b", Line::snapshot(PriceList::newest(), 3 << 29, Tier::Standard)),
        ];
        let groups = grouped(lines);
        let names: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["b", "a", "c"]);
        let (_, first) = groups[0];
        let items = Items { storage: 8_000_000, iops: 5_000_000, throughput: 0, snapshots: 75_000 };
        assert_eq!((first.list, first.list.total()), (items, 13_075_000));
        assert_eq!((first.volumes, first.gib, first.snapshots), (1, 100, 1));
        assert_eq!(first.snapshot_bytes, 3 << 29);
    }

    #[test]
    fn what_has_no_price_is_counted_and_costs_nothing() {
        let old = PriceList::as_of("2013-01-01".parse().unwrap()).unwrap();
        let spec = layout(1, VolumeType::Gp3, 100, None).each;
        let mut line = Line::volume(old, &spec);
        line.add(&Line::snapshot(old, 1 << 30, Tier::Archive));
        assert_eq!((line.list.total(), line.unpriced), (0, 2));
    }

    #[test]
    fn an_archived_snapshot_costs_its_own_price_and_a_restored_one_both() {
        let of = |tier| {
            let line = Line::snapshot(PriceList::newest(), 4 << 30, tier);
            (line.list.snapshots, line.archived)
        };
        assert_eq!(of(Tier::Standard), (200_000, 0));
        assert_eq!(of(Tier::Archive), (50_000, 1));
        assert_eq!(of(Tier::Restored), (250_000, 1));
    }

    #[test]
    fn a_table_in_cents_adds_up_where_plain_rounding_would_not() {
        // Three thirds of a cent are a cent; each of them, rounded alone, would be 0.
        let cents = in_cents(&[vec![3_350], vec![3_350], vec![3_350]]);
        assert_eq!(
            cents,
            Cents { rows: vec![vec![1], vec![0], vec![0]], columns: vec![1], total: 1 }
        );
        assert_eq!(in_cents(&[]), Cents { rows: vec![], columns: vec![], total: 0 });
    }

    proptest! {
        /// Rows and columns add up to the printed total, and no cell is off by a cent.
        #[test]
        fn tables_in_cents_add_up(
            rows in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![Just(0), 0..30_000_u64, 0..1_u64 << 40], 4),
                0..20,
            ),
        ) {
            let cents = in_cents(&rows);
            prop_assert_eq!(cents.columns.iter().sum::<u64>(), cents.total);
            let whole: u64 = rows.iter().flatten().sum();
            let twice = cents.total * 2 * MICROS_PER_CENT;
            prop_assert!(twice.abs_diff(whole * 2) <= MICROS_PER_CENT);
            let mut sums = vec![0; cents.columns.len()];
            for (row, shown) in rows.iter().zip(&cents.rows) {
                for ((exact, shown), sum) in row.iter().zip(shown).zip(&mut sums) {
                    prop_assert!((shown * MICROS_PER_CENT).abs_diff(*exact) < MICROS_PER_CENT);
                    *sum += shown;
                }
            }
            prop_assert_eq!(sums, cents.columns);
        }
    }
}
