//! The formats in which AWS publishes prices. The figures are those of the price list of Tokyo.

use evenkeel_core::volume::{Rules, VolumeRequest};

use super::*;

/// A usage type, its unit and its price.
const TOKYO: [(&str, &str, &str); 14] = [
    ("APN1-EBS:VolumeUsage", "GB-Mo", "0.0800000000"),
    ("APN1-EBS:VolumeIOUsage", "IOs", "0.0000000800"),
    ("APN1-EBS:VolumeUsage.gp2", "GB-Mo", "0.1200000000"),
    ("APN1-EBS:VolumeUsage.gp3", "GB-Mo", "0.0960000000"),
    ("APN1-EBS:VolumeP-IOPS.gp3", "IOPS-Mo", "0.0060000000"),
    ("APN1-EBS:VolumeP-Throughput.gp3", "GiBps-mo", "49.1520000000"),
    ("APN1-EBS:VolumeUsage.io2", "GB-month", "0.1420000000"),
    ("APN1-EBS:VolumeP-IOPS.io2", "IOPS-Mo", "0.0740000000"),
    ("APN1-EBS:VolumeP-IOPS.io2.tier2", "IOPS-Mo", "0.0518000000"),
    ("APN1-EBS:VolumeP-IOPS.io2.tier3", "IOPS-Mo", "0.0362600000"),
    ("APN1-EBS:VolumeUsage.st1", "GB-Mo", "0.0540000000"),
    ("APN1-EBS:VolumeUsage.gp2-outposts", "GB-Mo", "9.0000000000"),
    ("APN1-EBS:VolumeUsage.piops", "GB-Mo", "0.1420000000"),
    ("APN1-BoxUsage:m5.large", "Hrs", "0.1240000000"),
];

fn read(texts: &[&str]) -> Result<Vec<PriceList>, Broken> {
    let mut offers = Offers::default();
    for text in texts {
        offers.read(&mut text.as_bytes())?;
    }
    offers.lists()
}

fn term(sku: usize, unit: &str, price: &str, currency: &str) -> String {
    format!(
        r#"{{"{sku}.T": {{"offerTermCode": "T", "effectiveDate": "2026-09-01T00:00:00Z",
        "priceDimensions": {{"{sku}.T.D": {{"rateCode": "{sku}.T.D", "unit": "{unit}",
        "beginRange": "0", "endRange": "Inf", "pricePerUnit": {{"{currency}": "{price}"}}}}}}}}}}"#
    )
}

fn product(sku: usize, usage_type: &str) -> String {
    format!(
        r#"{{"sku": "{sku}", "productFamily": "Storage", "attributes": {{"servicecode": "AmazonEC2",
        "regionCode": "ap-northeast-1", "usagetype": "{usage_type}"}}}}"#
    )
}

fn offer_file() -> String {
    let products = (0..).zip(TOKYO).map(|(at, row)| format!("\"{at}\": {}", product(at, row.0)));
    let terms =
        (0..).zip(TOKYO).map(|(at, row)| format!("\"{at}\": {}", term(at, row.1, row.2, "USD")));
    format!(
        r#"{{"formatVersion": "v1.0", "publicationDate": "2026-09-10T00:00:00Z",
        "products": {{{}}}, "terms": {{"OnDemand": {{{}}}, "Reserved": {{"0": {{"a": 1}}}}}}}}"#,
        products.collect::<Vec<_>>().join(","),
        terms.collect::<Vec<_>>().join(",")
    )
}

fn answers(rows: &[(&str, &str, &str)], currency: &str) -> String {
    let one = |(at, row): (usize, &(&str, &str, &str))| {
        let text = format!(
            r#"{{"product": {}, "serviceCode": "AmazonEC2", "version": "1",
            "publicationDate": "2026-09-10T00:00:00Z", "terms": {{"OnDemand": {}}}}}"#,
            product(at, row.0),
            term(at, row.1, row.2, currency)
        );
        serde_json::to_string(&text).unwrap()
    };
    let all: Vec<String> = (0..).zip(rows).map(one).collect();
    format!(r#"{{"FormatVersion": "aws_v1", "PriceList": [{}]}}"#, all.join(","))
}

fn csv() -> String {
    let mut text = "\"FormatVersion\",\"v1.0\"\n\"Disclaimer\",\"This, that\"\n\
        \"Publication Date\",\"2026-09-10T00:00:00Z\"\n\
        \"SKU\",\"TermType\",\"EffectiveDate\",\"Unit\",\"PricePerUnit\",\"Currency\",\
        \"usageType\",\"Region Code\"\n"
        .to_owned();
    for (usage_type, unit, price) in TOKYO {
        let row = ["A", "OnDemand", "2026-09-01", unit, price, "USD", usage_type, "ap-northeast-1"];
        text += &format!("\"{}\"\n", row.join("\",\""));
    }
    text + "\"B\",\"Reserved\",\"2026-09-01\",\"GB-Mo\",\"0.01\",\"USD\",\
        \"APN1-EBS:VolumeUsage.gp2\",\"ap-northeast-1\"\n"
}

/// Returns the monthly price of a volume. The built-in list of Tokyo has the same one.
fn monthly(list: &PriceList, volume_type: VolumeType, iops: Option<u32>) -> Option<u64> {
    let throughput_mibps = (volume_type == VolumeType::Gp3).then_some(250);
    let request =
        VolumeRequest { volume_type, size_gib: 500, iops, throughput_mibps, multi_attach: false };
    list.monthly_micro_usd(&Rules::newest().resolve(&request).unwrap())
}

#[test]
fn every_form_says_the_same() {
    let bare = answers(&TOKYO, "USD");
    let bare = &bare[bare.find('[').unwrap()..bare.len() - 1];
    let (first, second) = TOKYO.split_at(4);
    let parts = [answers(first, "USD"), answers(second, "USD")];
    let known = PriceList::in_region("ap-northeast-1", None).unwrap();
    for texts in [
        vec![offer_file().as_str()],
        vec![answers(&TOKYO, "USD").as_str()],
        vec![bare],
        vec![csv().as_str()],
        parts.iter().map(String::as_str).collect(),
    ] {
        let lists = read(&texts).unwrap();
        let [list] = lists.as_slice() else { panic!("one region") };
        assert_eq!((list.region(), list.currency()), ("ap-northeast-1", "USD"));
        assert_eq!(list.date(), "2026-09-01".parse().unwrap());
        for (volume_type, iops) in [
            (VolumeType::Gp2, None),
            (VolumeType::Gp3, Some(4_000)),
            (VolumeType::Io2, Some(32_000)),
            (VolumeType::Io2, Some(100_000)),
            (VolumeType::St1, None),
        ] {
            let cost = monthly(list, volume_type, iops);
            assert!(cost.is_some() && cost == monthly(known, volume_type, iops), "{volume_type}");
        }
        assert_eq!(list.of(VolumeType::Standard).unwrap().million_ios, 80_000);
        // Without the price of its IOPS, io1 has no price.
        assert!(list.of(VolumeType::Io1).is_none() && list.of(VolumeType::Sc1).is_none());
    }
}

#[test]
fn currencies_and_units_are_those_of_the_list() {
    let rows = [
        ("CNN1-EBS:VolumeUsage.gp3", "GB-Mo", "0.5312000000"),
        ("CNN1-EBS:VolumeP-IOPS.gp3", "IOPS-Mo", "0.0332000000"),
        ("CNN1-EBS:VolumeP-Throughput.gp3", "MiBps-Mo", "0.2656000000"),
    ];
    let list = read(&[&answers(&rows, "CNY")]).unwrap().remove(0);
    assert_eq!(list.currency(), "CNY");
    let cost = 500 * 531_200 + 1_000 * 33_200 + 125 * 265_600;
    assert_eq!(monthly(&list, VolumeType::Gp3, Some(4_000)), Some(cost));
}

#[test]
fn what_is_no_price_list_is_refused() {
    let gp3 = TOKYO[3];
    for (text, expected) in [
        ("{}".to_owned(), "an offer file of AmazonEC2"),
        (answers(&[(gp3.0, "GB-Day", gp3.2)], "USD"), "the unit of APN1-EBS:VolumeUsage.gp3"),
        (answers(&[(gp3.0, gp3.1, "cheap")], "USD"), "a price, such as 0.08"),
        (answers(&[gp3, (gp3.0, gp3.1, "0.1")], "USD"), "one price of APN1-EBS:VolumeUsage.gp3"),
        (answers(&[gp3], "USD").replace("ap-northeast-1", ""), "the regionCode of APN1-EBS"),
        (r#"{"PriceList": [], "NextToken": "a"}"#.to_owned(), "an answer with all pages"),
        ("{\"PriceList\": [\"x\"]}".to_owned(), "an offer file of AmazonEC2, or an answer"),
        ("a,b\n".repeat(30), "a header with usageType"),
        (offer_file().replace("0.096", "0,096"), "a price, such as 0.08"),
    ] {
        let broken = read(&[&text]).unwrap_err();
        assert!(broken.expected.contains(expected), "{broken}: {expected}");
    }
}
