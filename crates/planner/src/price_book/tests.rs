//! Books whose sums are calculated by hand, and the errors of broken books.

use proptest::prelude::*;

use super::*;
use crate::testing::layout;

const BOOK: &str = include_str!("../../books/price_book.toml");

fn no_record(path: &str) -> Result<DeviceFloor, String> {
    Err(format!("{path}: there are no records here"))
}

fn read(text: &str) -> Result<PriceBook, BookError> {
    PriceBook::read(text, &mut no_record)
}

fn charge(book: &PriceBook, volume_type: VolumeType, gib: u32, iops: Option<u32>) -> Charge {
    book.volume(Rules::newest(), &layout(1, volume_type, gib, iops).each).unwrap()
}

/// Two nodes of 7,300 EUR over five years are 240 a month, at 250 W each with 0.25 EUR and a pue of
/// 1.2 they are 108, and 60 each for the rack are 120: 468, of which eight of ten devices, the fast
/// ones, have 374.40. These cost 8 x 730 over four years, 120 a month, and 8 x 10 W are 17.28.
#[test]
fn a_month_of_a_book_is_what_a_pencil_says() {
    let book = read(BOOK).unwrap();
    assert_eq!(book.currency(), "EUR");
    let monthly = book.monthly();
    let [fast, slow] = book.kinds() else { panic!("two kinds") };
    assert_eq!((fast.name.as_str(), fast.monthly), ("nvme", 374_400_000 + 137_280_000));
    // 2 x 365 over five years are 12, and 2 x 5 W are 2.16.
    assert_eq!((slow.name.as_str(), slow.monthly), ("hdd", 93_600_000 + 14_160_000));
    assert_eq!(monthly.purchase, 240_000_000 + 120_000_000 + 12_000_000);
    assert_eq!(monthly.energy, 108_000_000 + 17_280_000 + 2_160_000);
    assert_eq!(monthly.running, 120_000_000);
    assert_eq!(monthly.total(), fast.monthly + slow.monthly, "nothing is left over");
}

/// One of eight fast devices costs 63.96 a month; it has 4,000 GiB and sells 80,000 IOPS.
#[test]
fn a_volume_pays_the_larger_of_its_parts() {
    use VolumeType::{Io2, St1, Standard};
    let book = read(BOOK).unwrap();
    // A tenth of the space, and a tenth of the IOPS.
    let by_space = Charge { micros: 6_396_000, by: ChargedBy::Space };
    assert_eq!(charge(&book, Io2, 400, Some(8_000)), by_space);
    assert_eq!(charge(&book, Io2, 400, Some(100)), by_space);
    let by_time = charge(&book, Io2, 200, Some(16_000));
    assert_eq!((by_time.micros, by_time.by), (12_792_000, ChargedBy::DeviceTime));
    // The slow ones cost 53.88 each, have 10,000 GiB, and carry the types that they name.
    assert_eq!(charge(&book, Standard, 1_000, None).micros, 5_388_000);
    assert_eq!(book.carrier(St1).unwrap().name, "hdd");
    let two = Layout { volumes: 2, ..layout(1, Io2, 400, Some(8_000)) };
    assert_eq!(book.layout(Rules::newest(), &two), Ok(12_792_000));
    assert_eq!(book.snapshot(Some(Io2), 4_000 << 30), Ok(63_960_000));
    assert_eq!(book.snapshot(None, 2_000 << 30), Ok(31_980_000));
}

/// Asserts the error of the book with one thing changed.
#[track_caller]
fn assert_says(changes: &[(&str, &str, &str)]) {
    for (from, to, error) in changes {
        assert!(BOOK.contains(from), "{from}");
        let said = read(&BOOK.replacen(from, to, 1)).unwrap_err().to_string();
        assert_eq!(said, *error, "{to}");
    }
}

#[test]
fn mistakes_are_named() {
    assert_says(&[
        (
            "kwh = 0.25",
            "kwh = -0.25",
            "line 3: kwh = -0.25 in the price book: expected a number from 0 to 1000 with at most \
             6 decimals, such as 1.5",
        ),
        (
            "pue = 1.2",
            "pue = 1.2345678",
            "line 4: pue = 1.2345678 in the price book: expected a number from 1 to 10 with at \
             most 6 decimals, such as 1.5",
        ),
        (
            "kwh = 0.25                # a kilowatt hour\n",
            "",
            "line 1: the price book has no kwh: add the price of a kilowatt hour",
        ),
        ("watts = 250", "wats = 250", "line 6: [node] has no watts: add what one takes"),
        (
            "watts = 250",
            "watts = 250\nrack = 3",
            "line 11: unknown key \"rack\" in [node]; the keys are number, price, years, watts, \
             monthly",
        ),
    ]);
    let none = read("currency = \"EUR\"\nkwh = 0\n").unwrap_err();
    assert_eq!(none.to_string(), "0 tables [[device]]: expected 1 to 100");
    assert!(read("currency = ").unwrap_err().to_string().starts_with("line 1: "));
}

#[test]
fn mistakes_in_devices_are_named() {
    assert_says(&[
        (
            "capacity_gib = 4000",
            "capacity_gib = \"4 TB\"",
            "line 19: capacity_gib = \"4 TB\" in [[device]]: expected a whole number from 1 to \
             4294967296",
        ),
        (
            "sells_throughput = 2500",
            "sells_throughput = 99999",
            "line 13: in [[device]]: 80000 IOPS of 16 KiB and 99999 MiB/s do not go together: give \
             1250 to 40000 MiB/s with these IOPS",
        ),
        (
            "sells_iops = 80000        # of 16 KiB, or\nsells_throughput = 2500",
            "calibration = \"c.json\"",
            "line 13: c.json: there are no records here",
        ),
        (
            "sells_throughput = 2500",
            "",
            "line 13: [[device]] has no one source of what it sells: add either sells_iops and \
             sells_throughput, or calibration",
        ),
        (
            "types = [\"standard\", \"st1\", \"sc1\"]",
            "types = [\"gp9\"]",
            "line 32: types = [\"gp9\"] in [[device]]: expected a list of standard, st1, sc1, gp2, \
             gp3, io1, io2",
        ),
        (
            "types = [\"standard\", \"st1\", \"sc1\"]",
            "",
            "line 23: the devices \"nvme\" and \"hdd\" carry the same types: give each its own \
             `types`, all but one",
        ),
    ]);
}

#[test]
fn a_type_that_nothing_carries_is_named() {
    let only_slow = BOOK.split("[[device]]").nth(2).map(|slow| {
        let head = BOOK.split("[[device]]").next().unwrap_or_default();
        format!("{head}[[device]]{slow}")
    });
    let book = read(&only_slow.unwrap()).unwrap();
    let error = book.volume(Rules::newest(), &layout(1, VolumeType::Gp3, 1, None).each);
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("no device of the price book carries gp3 volumes: add"), "{error}");
}

proptest! {
    /// A device full of equal volumes earns its cost, except for the rounding of each.
    #[test]
    fn equal_volumes_that_fill_a_device_pay_for_it(
        volumes in 1..400_u32,
        price in 0..1_000_000_u32,
        by_space: bool,
    ) {
        // `volumes` volumes of 100 GiB and 100 IOPS each fill the device, by space or by IOPS.
        let (gib, iops) = if by_space { (100, 200) } else { (200, 100) };
        let book = format!(
            "currency = \"EUR\"\nkwh = 0.1\n[[device]]\nname = \"a\"\nnumber = 1\nprice = {price}\n\
             years = 3\nwatts = 7\ncapacity_gib = {}\nsells_iops = {}\nsells_throughput = {}\n",
            volumes * gib,
            volumes * iops,
            (volumes * iops) / 2,
        );
        let book = read(&book).unwrap();
        let each = charge(&book, VolumeType::Io2, 100, Some(100));
        let by = if by_space { ChargedBy::Space } else { ChargedBy::DeviceTime };
        prop_assert_eq!(each.by, by);
        let sum = each.micros * u64::from(volumes);
        let off = sum.abs_diff(book.monthly().total());
        // The floor of an operator's figure is rounded to whole nanoseconds of each request.
        let slack = if by_space { 0 } else { book.monthly().total() / 1_000 };
        prop_assert!(off <= u64::from(volumes) + slack, "{sum} of {:?}", book.monthly());
    }

    /// Any volumes that fit on a device together pay at least for the part of it that they fill.
    #[test]
    fn what_is_sold_is_paid(all in proptest::collection::vec((4..400_u32, 100..4_000_u32), 1..10)) {
        let book = read(BOOK).unwrap();
        let (mut paid, mut gib, mut iops) = (0, 0, 0);
        for (size_gib, per_second) in &all {
            let per_second = (*per_second).min(size_gib * 500);
            paid += charge(&book, VolumeType::Io2, *size_gib, Some(per_second)).micros;
            gib += u64::from(*size_gib);
            iops += u64::from(per_second);
        }
        let fraction = |part: u64, whole: u64| 63_960_000 * part / whole;
        prop_assert!(paid + all.len() as u64 >= fraction(gib, 4_000));
        prop_assert!(paid + 64_000 >= fraction(iops, 80_000));
    }

    /// Any book is read or rejected without a panic.
    #[test]
    fn no_book_is_too_strange(text in "[a-z=\"\\[\\]0-9.\n -]{0,200}", at in 0..600_usize) {
        let _ = read(&text);
        let mut broken = BOOK.to_owned();
        let at = at.min(broken.len());
        if broken.is_char_boundary(at) {
            broken.insert_str(at, &text);
            let _ = read(&broken);
        }
    }
}
