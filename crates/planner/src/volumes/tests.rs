//! Lists as Evenkeel prints them and as people write them.

use proptest::prelude::*;

use super::*;

fn list(text: &str) -> Result<Vec<Listed>, Broken> {
    read(&mut text.as_bytes(), Rules::newest())
}

#[test]
fn a_listing_of_the_server_is_a_list() {
    let all = list(
        "volume,type,gib,iops,mib_s,state,usd_month,attached_to,name\n\
         vol-a,gp3,100,4000,200,in-use,16.00,i-1,\"log, old\"\n\
         vol-b,gp2,100,300,,available,10.00,,\n\
         vol-c,st1,500,,,available,22.50,,\n",
    )
    .unwrap();
    let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["vol-a", "vol-b", "vol-c"]);
    let spec = all[0].spec;
    assert_eq!((spec.iops, spec.throughput_mibps, spec.size_gib), (Some(4_000), Some(200), 100));
    assert_eq!((all[1].spec.iops, all[2].spec.iops), (Some(300), None));
}

#[test]
fn a_list_may_say_how_many_and_leave_out_the_rest() {
    let all = list("Type, Size_GiB, Count\n\ngp3, 10, 3\r\nio2, 10, 1\n").unwrap_err();
    // io2 must have IOPS.
    assert_eq!(all.line, Some(4), "{all}");
    let all = list("Type, Size_GiB, Count\n\ngp3, 10, 3\r\ngp3,1,0\n").unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!((all[2].name.as_str(), all[2].spec.iops), ("line 3 3", Some(3_000)));
    assert_eq!(list("type,gib\n").unwrap(), []);
    let all = list("type,gib,iops\ngp3,1.5 TiB,\"4,000\"\n").unwrap();
    assert_eq!((all[0].spec.size_gib, all[0].spec.iops), (1_536, Some(4_000)));
}

#[test]
fn mistakes_are_named() {
    for (text, error) in [
        ("", "\"\": expected a list of volumes in CSV with the columns type and gib"),
        (
            "a,b\n",
            "line 1: \"a,b\": expected the titles of columns, among them type or volume_type: \
             `evenkeel volume ls -o csv` prints such a list",
        ),
        (
            "type,gib\ngp9,1\n",
            "line 2: \"gp9\": expected a volume type: standard, st1, sc1, gp2, gp3, io1 or io2",
        ),
        (
            "\ntype,gib,iops,IOPS\ngp3,1,3000,4000\n",
            "line 2: \"IOPS\": expected one of this column and \"iops\", which says the same",
        ),
        ("type,gib\ngp3,\n", "line 2: \"\": expected a size in whole GiB"),
        (
            "type,gib\ngp3,-4\n",
            "line 2: \"-4\": expected a size in GiB, with or without a unit (MiB, GiB, TiB): 100, \
             1,000, 100 GiB, 1.5 TiB",
        ),
        (
            "type,gib,count\ngp3,1,3x\n",
            "line 2: \"3x\": expected a whole number of volumes, or nothing",
        ),
        (
            "type,gib,count\ngp3,1,4000000000\n",
            "line 2: \"4000000000\": expected at most 100000 volumes",
        ),
    ] {
        assert_eq!(list(text).unwrap_err().to_string(), error);
    }
    let error = list("type,gib\ngp3,99999999\n").unwrap_err().to_string();
    assert!(
        error.starts_with("line 2: \"gp3,99999999\": expected a volume that can be: "),
        "{error}"
    );
}

proptest! {
    /// Any list is read or rejected without a panic.
    #[test]
    fn no_list_is_too_strange(text in "(type,gib,count\n)?[a-z0-9,\"\n\r-]{0,200}") {
        if let Ok(all) = list(&text) {
            prop_assert!(all.len() <= VOLUMES_MAX);
        }
    }
}
