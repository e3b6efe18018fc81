//! Lists of all forms, and what is wrong with others.

use super::*;
use evenkeel_core::volume::VolumeType::{Gp2, Gp3, Io2, St1};

const EAST: Options<'_> =
    Options { region: Some("us-east-1"), group_by: None, allows_partial: false };

fn read_text(text: &str) -> Result<List, Broken> {
    read(&mut text.as_bytes(), Rules::newest(), EAST)
}

fn one(text: &str) -> Volume {
    let list = read_text(text).expect("a list");
    assert_eq!(list.refused, []);
    list.volumes.into_iter().next().expect("a volume")
}

#[test]
fn columns_are_known_by_their_names() {
    let list = read_text(
        "Volume_ID,type,Size (GiB),x,IOPS,throughput,STATE,Attached Instances,Device,tag:Name\n\
         vol-0a,gp3,100 GiB,,3000.0,125,in-use,i-1,/dev/xvda,\"a, \"\"b\"\"\"\n\
         \n\
         vol-0b,GP2,100,,300,-,available,,,\n\
         vol-0c,st1,500,,,,creating,,,\n",
    )
    .unwrap();
    let types: Vec<_> = list.volumes.iter().map(|volume| volume.spec.volume_type).collect();
    assert_eq!(types, [Gp3, Gp2, St1]);
    let [first, second, third] = list.volumes.as_slice() else { panic!() };
    assert_eq!((first.spec.iops, first.spec.throughput_mibps), (Some(3_000), Some(125)));
    assert_eq!((first.attached, first.boots), (Some(true), true));
    assert_eq!(first.attached_to.as_deref(), Some("i-1"));
    assert_eq!((second.spec.iops, second.attached, second.boots), (Some(300), Some(false), false));
    assert_eq!(third.unsettled.as_deref(), Some("its state is creating"));
    // As the console, and as our own listing.
    let list = "Name;Volume ID;Type;Size;IOPS;Throughput;Attached resources;Volume state\n\
        a;vol-0a;gp3;8 GiB;3000;125;i-1: /dev/sda1 (attached);In-use\n";
    assert!(one(list).boots);
    let list = "volume,type,gib,iops,mib_s,state,attached_to,name\n\
        vol-0a,io2,8,500,,in-use,i-1 i-2,log\n";
    let volume = one(list);
    assert_eq!((volume.spec.volume_type, volume.spec.iops), (Io2, Some(500)));
    assert_eq!(volume.name.as_deref(), Some("log"));
    // The list does not say whether an instance has it.
    assert_eq!(one("id,type,size\nvol-0a,gp3,8\n").attached, None);
}

#[test]
fn answers_of_describe_volumes_and_our_own_are_read() {
    let aws = r#"{"Volumes": [
        {"VolumeId": "vol-0a", "VolumeType": "io2", "Size": 100, "Iops": 500, "State": "in-use",
         "MultiAttachEnabled": true, "Encrypted": false, "Tags": [{"Key": "Name", "Value": "n"}],
         "Attachments": [{"InstanceId": "i-1", "Device": "/dev/sdf", "State": "attached"},
                         {"InstanceId": "i-2", "Device": "/dev/sdf", "State": "attached"}]},
        {"VolumeId": "vol-0b", "VolumeType": "gp3", "Size": 8, "Iops": 3000, "Throughput": 125,
         "State": "available", "Attachments": []}]}"#;
    let list = read_text(aws).unwrap();
    let [first, second] = list.volumes.as_slice() else { panic!() };
    assert!(first.spec.multi_attach && first.attached_to.as_deref() == Some("i-1 i-2"));
    assert_eq!((first.name.as_deref(), first.attached), (Some("n"), Some(true)));
    assert_eq!((second.name.as_deref(), second.attached), (None, Some(false)));
    let ours = r#"{"schema": "evenkeel.volumes/1", "volumes": [{"volume_id": "vol-0a",
        "volume_type": "gp3", "size_gib": 8, "iops": 3000, "throughput_mibps": 125,
        "state": "in-use", "multi_attach": false, "tags": {"Name": "n"},
        "attachments": [{"host_id": "i-1", "device": "/dev/sda1"}]}]}"#;
    let volume = one(ours);
    assert_eq!((volume.boots, volume.name.as_deref()), (true, Some("n")));
    // A part, as `--query Volumes` prints it.
    assert_eq!(one(r#"[{"VolumeId": "v", "VolumeType": "gp3", "Size": 8}]"#).id, "v");

    let page = aws
        .replace("]}]}", "]}], \"NextToken\": \"abc\"}")
        .replace("\"Attachments\": []}]}", "\"Attachments\": []}], \"NextToken\": \"abc\"}");
    let broken = read_text(&page).unwrap_err();
    assert!(broken.to_string().contains("an answer with all pages"), "{broken}");
    let options = Options { allows_partial: true, ..EAST };
    let part = read(&mut page.as_bytes(), Rules::newest(), options);
    assert_eq!(part.unwrap().volumes.len(), 2);
}

#[test]
fn what_is_wrong_is_told_and_the_rest_is_read() {
    let list = read_text(
        "VolumeId,VolumeType,Size,Iops,State,Boot\n\
         vol-0a,gp3,100,3000,in-use,\n\
         vol-0a,gp3,100,3000,in-use,\n\
         vol-0b,gp4,100,,in-use,\n\
         vol-0c,gp3,much,,in-use,\n\
         vol-0d,io1,10,5000,in-use,\n\
         vol-0e,io1,100,,in-use,\n\
         vol-0f,gp3\n\
         \"vol-10,gp3,100,,in-use,\n\
         vol-$(x),gp3,100,,in-use,\n\
         ,gp3,100,,in-use,\n\
         vol-11,gp3,100,,deleting,\n\
         vol-12,gp3,100,,gone,\n\
         vol-13,gp3,100,,in-use,perhaps\n\
         vol-14,,100,,in-use,\n",
    )
    .unwrap();
    assert_eq!(list.volumes.len(), 1);
    let told: Vec<String> = list
        .refused
        .iter()
        .map(|refused| format!("{}: {}", refused.place, refused.reason))
        .collect();
    let expected = [
        "line 3: it stands at line 2 already",
        "line 4: the type \"gp4\": expected standard, st1, sc1, gp2, gp3, io1 or io2",
        "line 5: column Size: \"much\": expected a size in GiB, with or without a unit",
        "line 6: by the rules of 2026-01-15 it cannot be: Iops to volume size ratio of 500 is too \
         high; maximum is 50",
        "line 7: by the rules of 2026-01-15 it cannot be: ",
        "line 8: it has 2 cells: expected 6, as the header has",
        "line 9: a quote is not closed on the line",
        "line 10: the id \"vol-$(x)\": expected at most 64 letters",
        "line 11: it has no id: expected vol-... in the column VolumeId",
        "line 12: it is being deleted",
        "line 13: the state \"gone\": expected in-use",
        "line 14: boots \"perhaps\": expected true or false",
        "line 15: it has no type: expected gp3 or another one",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}: {expected}");
    }
    assert_eq!(list.refused[0].id.as_deref(), Some("vol-0a"));
}

#[test]
fn a_text_that_is_no_list_is_refused() {
    for (text, expected) in [
        ("", "at least one"),
        ("VolumeId,Size\nvol-0a,8\n", "there is no column VolumeType"),
        ("{\"Reservations\": []}", "volumes as DescribeVolumes"),
        ("{\"Volumes\": [{\"VolumeId\": ", "is the file complete?"),
        ("{\"Volumes\": []}", "at least one"),
    ] {
        let broken = read_text(text).unwrap_err().to_string();
        assert!(broken.contains(expected), "{text}: {broken}");
    }
    let mut many = "VolumeId,VolumeType,Size\n".to_owned();
    (0..=NAMES_MAX).for_each(|number| many += &format!("vol-{number:x},gp3,8\n"));
    let broken = read_text(&many).unwrap_err().to_string();
    assert!(broken.contains("at most 100000 volumes; split the list"), "{broken}");
}

/// Every number of a list is read with its unit, or refused with its column and its text.
#[test]
fn numbers_have_units_or_are_refused() {
    let of =
        |volume: &Volume| (volume.spec.size_gib, volume.spec.iops, volume.spec.throughput_mibps);
    let all = read_text(
        "VolumeId,VolumeType,Size,Iops,Throughput\n\
         vol-0a,gp3,2 TiB,\"4,000\",\"250 MiB/s\"\n\
         vol-0b,gp3,\"1,000\",3k,125\n\
         vol-0c,gp3,1.5T,3000 IOPS,1 GiB/s\n\
         vol-0d,gp3,8 potatoes,3000,125\n\
         vol-0e,gp3,100,many,125\n\
         vol-0f,gp3,100,3000,125 Mbps\n\
         vol-10,gp3,1.234,3000,125\n\
         vol-11,gp3,1.5,3000,125\n",
    );
    let List { volumes, refused } = all.unwrap();
    let read: Vec<_> = volumes.iter().map(of).collect();
    assert_eq!(read[..2], [(2_048, Some(4_000), Some(250)), (1_000, Some(3_000), Some(125))]);
    assert_eq!(volumes.len(), 2, "1 GiB/s is more than 3,000 IOPS allow");
    let starts = [
        "by the rules of",
        "column Size: \"8 potatoes\": expected a size in GiB",
        "column Iops: \"many\": expected I/Os a second",
        "column Throughput: \"125 Mbps\": expected MiB a second",
        "column Size: \"1.234\": expected a size in GiB",
        "column Size: \"1.5\": expected a size in GiB",
    ];
    assert_eq!(refused.len(), starts.len(), "{refused:?}");
    for (refused, start) in refused.iter().zip(starts) {
        assert!(refused.reason.to_string().starts_with(start), "{refused:?}");
    }
    // The unit may stand in the header; one that is not known is refused.
    let volume = one("VolumeId,VolumeType,Size (TiB),Throughput (MB/s)\nvol-0a,gp3,2,250\n");
    assert_eq!(of(&volume), (2_048, Some(3_000), Some(250)));
    for name in ["Size（TiB）", "Size “TiB”", "Size TiB…", "Size [TiB]", "Size T…iB", "…Size TiB"]
    {
        let volume = one(&format!("VolumeId,VolumeType,{name}\nvol-0a,gp3,2\n"));
        assert_eq!(volume.spec.size_gib, 2_048, "{name}");
    }
    let broken = read_text("VolumeId,VolumeType,Size,Throughput (Mbps)\nvol-0a,gp3,2,250\n");
    let broken = broken.unwrap_err().to_string();
    assert!(broken.starts_with("line 1: \"Throughput (Mbps)\": expected a column of"), "{broken}");
}

/// A Local Zone has prices of its own, whatever the column Region says; a zone of another region is
/// refused, and so is a volume whose region is not known.
#[test]
fn prices_are_those_of_the_zone_and_commands_go_to_its_region() {
    let text = "VolumeId,VolumeType,Size,Region,AvailabilityZone\n\
        vol-0a,gp3,8,us-east-1,us-east-1-bos-1a\n\
        vol-0b,gp3,8,us-east-1,us-east-1c\n\
        vol-0c,gp3,8,us-east-1,eu-west-1a\n\
        vol-0d,gp3,8,eu-west-1,\n\
        vol-0e,gp3,8,,us-west-2-lax-1b\n\
        vol-0f,gp3,8,,local-1a\n\
        vol-10,gp3,8,,\n";
    let of = |region: Option<&str>| {
        let options = Options { region, ..Options::default() };
        let list = read(&mut text.as_bytes(), Rules::newest(), options).expect("a list");
        let volume = |it: &Volume| (it.region.clone().unwrap_or_default(), it.price_region.clone());
        let all: Vec<_> = list.volumes.iter().map(volume).collect();
        let refused =
            list.refused.iter().map(|refused| format!("{}: {}", refused.place, refused.reason));
        (all, refused.collect::<Vec<_>>())
    };
    let pair = |region: &str, prices: &str| (region.to_owned(), prices.to_owned());
    let mut expected = vec![
        pair("us-east-1", "us-east-1-bos-1"),
        pair("us-east-1", "us-east-1"),
        pair("eu-west-1", "eu-west-1"),
        pair("us-west-2", "us-west-2-lax-1"),
    ];
    let elsewhere = "line 4: its zone eu-west-1a is not in its region us-east-1";
    let unknown = "the list does not say in which region it is";
    let flag = "name it with --region";
    let (all, refused) = of(None);
    assert_eq!(all, expected);
    let ours = format!("line 7: {unknown} (its zone \"local-1a\" is none of AWS): {flag}");
    assert_eq!(refused, [elsewhere.to_owned(), ours, format!("line 8: {unknown}: {flag}")]);
    // The region that is asked for is that of volumes without one; those of others are refused.
    let (all, refused) = of(Some("us-east-1"));
    expected.truncate(2);
    expected.extend([pair("", "us-east-1"), pair("us-east-1", "us-east-1")]);
    assert_eq!(all, expected);
    let other = |found: &str, region: &str| {
        format!(
            "its {found} is not in us-east-1, which --region names: leave --region out, or name \
             {region}"
        )
    };
    let ireland = format!("line 5: {}", other("region eu-west-1", "eu-west-1"));
    let west = format!("line 6: {}", other("zone us-west-2-lax-1b", "us-west-2"));
    assert_eq!(refused, [elsewhere.to_owned(), ireland, west]);
}

#[test]
fn groups_are_by_a_tag_an_account_or_a_zone() {
    let aws = r#"{"Volumes": [
        {"VolumeId": "vol-0a", "VolumeType": "gp3", "Size": 8, "AvailabilityZone": "us-east-1a",
         "Tags": [{"Key": "Name", "Value": "n"}, {"Key": "team", "Value": "other"},
                  {"Key": "Team", "Value": "orders"}]},
        {"VolumeId": "vol-0b", "VolumeType": "gp3", "Size": 8, "OwnerId": "111122223333"}]}"#;
    let table = "VolumeId,VolumeType,Size,Zone,tag:Team,Account ID,Name\n\
        vol-0a,gp3,8,us-east-1a,orders,,n\n\
        vol-0b,gp3,8,,,111122223333,\n";
    let ours = r#"{"volumes": [{"volume_id": "vol-0a", "volume_type": "gp3", "size_gib": 8,
        "tags": {"Team": "orders", "Name": "n"}, "zone": "us-east-1a"}]}"#;
    for (text, group_by, expected) in [
        (aws, "tag:Team", vec![Some("orders"), None]),
        (aws, "tag:Name", vec![Some("n"), None]),
        (aws, "zone", vec![Some("us-east-1a"), None]),
        (aws, "account", vec![None, Some("111122223333")]),
        (table, "tag:Team", vec![Some("orders"), None]),
        (table, "tag:Name", vec![Some("n"), None]),
        (table, "account", vec![None, Some("111122223333")]),
        (ours, "tag:Team", vec![Some("orders")]),
    ] {
        let group_by: GroupBy = group_by.parse().unwrap();
        let options = Options { group_by: Some(&group_by), ..EAST };
        let list = read(&mut text.as_bytes(), Rules::newest(), options).unwrap();
        let found: Vec<_> = list.volumes.iter().map(|volume| volume.group.as_deref()).collect();
        assert_eq!((found, list.refused), (expected, vec![]), "{group_by}");
    }
    assert_eq!("team".parse::<GroupBy>().unwrap_err(), "expected tag:NAME, account or zone");
}

#[test]
fn used_space_has_a_column_in_gib_or_in_bytes() {
    for (title, cell, bytes) in [
        ("Used", "40", Some(40 << 30)),
        ("Used (GiB)", "1.5", Some(3 << 29)),
        ("used_bytes", "1234567", Some(1_234_567)),
        ("Used", "512 MiB", Some(1 << 29)),
        ("Used", "", None),
    ] {
        let volume = one(&format!("VolumeId,VolumeType,Size,{title}\nvol-0a,gp3,80,{cell}\n"));
        assert_eq!(volume.used.map(|used| used.bytes), bytes, "{title} {cell}");
    }
    let list = read_text("VolumeId,VolumeType,Size,Used\nvol-0a,gp3,80,most\n").unwrap();
    let reason = list.refused[0].reason.to_string();
    assert!(reason.starts_with("column Used: \"most\": expected a size in GiB"), "{reason}");
}
