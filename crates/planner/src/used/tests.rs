//! Texts of all forms, and what is wrong with others.

use proptest::prelude::*;

use super::*;
use crate::fleet::{Options, list};
use evenkeel_core::volume::Rules;

const DF: &str = include_str!("../../samples/used/df.txt");
const DF_LONG: &str = include_str!("../../samples/used/df_long_names.txt");
const LSBLK: &str = include_str!("../../samples/used/lsblk.json");
const PROMETHEUS: &str = include_str!("../../samples/used/prometheus.json");
const AGENT: &str = include_str!("../../samples/used/cloudwatch_agent.json");
const SNAPSHOTS: &str = include_str!("../../samples/used/snapshots.json");
const VOLUME: &str = "vol-0123456789abcdef0";
const HOST: &str = "i-0123456789abcdef1";

fn read_text(text: &str) -> Result<Read, Broken> {
    read(&mut text.as_bytes(), None)
}

/// Returns the used space of the volumes of a small fleet by a file.
fn gathered(files: &[(&str, &str)]) -> (BTreeMap<String, Used>, Vec<String>) {
    let table = format!(
        "VolumeId,VolumeType,Size,InstanceId,Device\n\
         {VOLUME},gp3,500,{HOST},/dev/sdf\n\
         vol-0aaaaaaaaaaaaaaa0,gp3,8,{HOST},/dev/xvda\n\
         vol-0ddddddddddddddd0,gp3,80,,\n"
    );
    let options = Options { region: Some("us-east-1"), ..Options::default() };
    let volumes = list::read(&mut table.as_bytes(), Rules::newest(), options).unwrap().volumes;
    let ids = volumes.iter().map(|volume| volume.id.as_str()).zip(0..).collect();
    let mut gathered = Gathered::new(&volumes, &ids);
    let mut left_out = Vec::new();
    for (name, text) in files {
        left_out.extend(gathered.add(name, read_text(text).unwrap()));
    }
    let known = gathered.finish().into_iter();
    (known.map(|(number, used)| (volumes[number].id.clone(), used)).collect(), left_out)
}

#[track_caller]
fn only(known: &BTreeMap<String, Used>, bytes: u64, source: Source) {
    let expected = BTreeMap::from([(VOLUME.to_owned(), Used { bytes, source })]);
    assert_eq!(*known, expected);
}

#[test]
fn df_names_devices_and_each_counts_once() {
    let read = read_text(DF).unwrap();
    let devices: Vec<&str> = read.known.iter().map(|found| found.device.as_str()).collect();
    let expected = ["/dev/nvme0n1p1", "/dev/xvdf", "/dev/xvdf", "/dev/mapper/vg0-logs"];
    assert_eq!(devices, expected);
    // The file's name has the instance; sdf of the list is xvdf there.
    let (known, left_out) = gathered(&[("df-i-0123456789abcdef1.txt", DF)]);
    only(&known, 73_400_320 << 10, Source::FileSystem);
    assert_eq!(left_out.len(), 2, "{left_out:?}");
    assert!(left_out[0].starts_with("/dev/nvme0n1p1: its volume is not known: `lsblk -J"));
    // A file of one volume, with a name that stands on a line of its own.
    let (known, left_out) = gathered(&[("df.txt", DF_LONG)]);
    only(&known, 73_400_320 << 10, Source::FileSystem);
    assert!(left_out.is_empty(), "{left_out:?}");
    let bytes = "Filesystem 1B-blocks Used Available Capacity Mounted on\n/dev/md0 9 5 4 56% /a\n";
    only(&gathered(&[("vol-0123456789abcdef0.df", bytes)]).0, 5, Source::FileSystem);
}

#[test]
fn lsblk_names_volumes_by_their_serial_numbers() {
    let (known, left_out) = gathered(&[("any.json", LSBLK)]);
    let bytes = |id: &str| known.get(id).map(|used| used.bytes);
    assert_eq!(bytes(VOLUME), Some(75_161_927_680));
    assert_eq!(bytes("vol-0aaaaaaaaaaaaaaa0"), Some(2_604_662_784 + 1_361_920));
    assert_eq!(known.len(), 2);
    assert_eq!(left_out, ["/dev/nvme2n1: nvme2n1 has a file system that is not mounted"]);
    let human = LSBLK.replace("\"2604662784\"", "\"2.4G\"");
    let broken = read_text(&human).unwrap_err().to_string();
    assert!(broken.contains("bytes, by the flag -b"), "{broken}");
}

#[test]
fn prometheus_has_the_maximum_and_the_serial_number_of_the_disk() {
    // At most 70 of 100 GiB were not available; another machine has the same device.
    let (known, left_out) = gathered(&[("answer.json", PROMETHEUS)]);
    only(&known, 70 << 30, Source::FileSystem);
    assert!(left_out.is_empty(), "{left_out:?}");
    let failed = r#"{"status": "error", "error": "timeout", "data": {"resultType": "matrix"}}"#;
    let broken = read_text(failed).unwrap_err().to_string();
    assert!(broken.contains("status error, timeout"), "{broken}");
    let none = r#"{"status": "success", "data": {"resultType": "vector", "result": []}}"#;
    assert!(read_text(none).unwrap_err().to_string().contains("node_filesystem_size_bytes"));
}

#[test]
fn the_cloudwatch_agent_has_bytes_or_percent() {
    let (known, _) = gathered(&[("agent.json", AGENT)]);
    let bytes = |id: &str| known.get(id).map(|used| used.bytes);
    // Bytes are more exact than percent; 12.5 % of 80 GiB are 10.
    assert_eq!(bytes(VOLUME), Some(75_161_927_680));
    assert_eq!(bytes("vol-0ddddddddddddddd0"), Some(10 << 30));
    let queries = r#"[{"Id": "a", "MetricStat": {"Period": 300, "Stat": "Maximum", "Metric":
        {"Namespace": "CWAgent", "MetricName": "disk_used", "Dimensions": [
            {"Name": "VolumeId", "Value": "vol-0123456789abcdef0"},
            {"Name": "device", "Value": "nvme1n1p1"}]}}}]"#;
    let answer = r#"{"MetricDataResults": [{"Id": "a", "Label": "x", "Values": [7.0]}]}"#;
    let read = read(&mut answer.as_bytes(), Some(queries)).unwrap();
    assert_eq!(read.known[0].volume.as_deref(), Some(VOLUME));
    assert_eq!(read.known[0].amount, Amount::Bytes(7));
    let broken = read_text(&AGENT.replace("12.5", "125.0")).unwrap_err().to_string();
    assert!(broken.contains("disk_used_percent up to 100"), "{broken}");
}

/// "The size of all the blocks that were written to the source volume at the time the snapshot was
/// created" (EC2 API reference), of the newest snapshot.
#[test]
fn the_newest_snapshot_counts_where_no_file_system_is_known() {
    let (known, left_out) = gathered(&[("snapshots.json", SNAPSHOTS)]);
    only(&known, 75 << 30, Source::Snapshot);
    assert_eq!(left_out.len(), 1);
    assert!(left_out[0].starts_with("1 snapshots without FullSnapshotSizeInBytes"));
    let both = [("snapshots.json", SNAPSHOTS), ("answer.json", PROMETHEUS)];
    only(&gathered(&both).0, 70 << 30, Source::FileSystem);
}

#[test]
fn a_text_of_another_form_is_refused_with_the_forms() {
    for (text, expected) in [
        ("", "LC_ALL=C df -P -k"),
        ("{\"Volumes\": []}", "used space: the output of `df -P -k`"),
        ("Dateisystem 1K-Blöcke Benutzt\n", "LC_ALL=C df -P -k"),
        ("Filesystem Size Used Avail Use% Mounted on\n", "rounded sizes, as of `df -h`"),
        ("Filesystem 1K-blocks Used Mounted on\n/dev/sda 1 x /\n", "a number of blocks"),
        ("{\"blockdevices\": [{\"name\": 7}]}", "lsblk -J -b"),
        ("{\"MetricDataResults\": [", "is the file complete?"),
    ] {
        let broken = read_text(text).unwrap_err().to_string();
        assert!(broken.contains(expected), "{text}: {broken}");
    }
}

#[test]
fn ids_are_found_in_names_and_serial_numbers() {
    let path = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0";
    assert_eq!(volume_in(path).as_deref(), Some(VOLUME));
    assert_eq!(volume_in("vol-0123456789abcdef0.json").as_deref(), Some(VOLUME));
    assert_eq!(volume_in("vol-012"), None);
    assert_eq!(host_in("df-i-0123456789abcdef1.txt").as_deref(), Some(HOST));
    assert_eq!((host_in("hi-01234567"), host_in("i0123456789abcdef")), (None, None));
    assert_eq!(letters_of("/dev/xvdba1"), Some("ba"));
    assert_eq!((letters_of("/dev/nvme1n1p1"), letters_of("/dev/sdf")), (None, Some("f")));
}

proptest! {
    /// No mutation of a sample ends the program.
    #[test]
    fn a_mutated_sample_is_read_or_refused(
        which in 0..6_usize,
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        is_cut in any::<bool>(),
    ) {
        let sample = [DF, DF_LONG, LSBLK, PROMETHEUS, AGENT, SNAPSHOTS][which];
        let mut bytes = sample.as_bytes().to_vec();
        let place = place.index(bytes.len());
        if is_cut {
            bytes.truncate(place);
        } else {
            bytes[place] = byte;
        }
        let _ = read(&mut bytes.as_slice(), None);
    }
}
