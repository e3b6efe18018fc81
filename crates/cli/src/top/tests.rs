//! The table on terminals of several sizes.

use super::obey;
use super::view::View;
use evenkeel_client::top::{Row, Sort, sort};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// An io2 volume that waits for its limit, a gp2 volume in its burst, and an idle st1 volume.
fn rows(by: Sort) -> Vec<Row> {
    let row = |id: char, volume_type: &str| Row {
        volume_id: format!("vol-0000000000000000{id}"),
        volume_type: volume_type.to_owned(),
        ..Row::default()
    };
    let mut rows = vec![
        Row {
            iops: Some(1_000.0),
            iops_limit: Some(1_000),
            bytes_per_second: Some(16_384_000.0),
            p50_us: Some(1_180),
            device_share: Some(0.25),
            ..row('a', "io2")
        },
        Row {
            iops: Some(3_000.0),
            iops_limit: Some(3_000),
            bytes_per_second: Some(12_288_000.0),
            p50_us: Some(4_719),
            device_share: Some(0.75),
            ..row('b', "gp2")
        },
        Row { bytes_per_second_limit: Some(20_971_520), ..row('c', "st1") },
    ];
    sort(&mut rows, by);
    rows
}

fn screen(view: &mut View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_screen_of_eighty_columns() {
    let mut view = View::new("http://127.0.0.1:8650", Sort::Device);
    view.update(rows(Sort::Volume));
    assert_eq!(
        screen(&mut view, 80, 8),
        "http://127.0.0.1:8650: 3 volumes, 4000 IOPS, 27.3 MiB/s; sorted by device\n\
         device held by: vol-0000000000000000b 75%, vol-0000000000000000a 25%\n\
         VOLUME                TYPE        IOPS IOPS LIMIT    MIB/S MIB/S LIMIT    P50 US\n\
         vol-0000000000000000b gp2         3000       3000     11.7           -      4719\n\
         vol-0000000000000000a io2         1000       1000     15.6           -      1180\n\
         vol-0000000000000000c st1            -          -        -        20.0         -\n\
         \n\
         q quit  s/S sort by  r reverse  up down page-up page-down scroll"
    );
}

#[test]
fn a_screen_without_room_still_draws() {
    let mut view = View::new("http://127.0.0.1:8650", Sort::Iops);
    for (width, height) in [(1, 1), (3, 2), (20, 3), (400, 4)] {
        view.update(rows(Sort::Iops));
        screen(&mut view, width, height);
        view.update(vec![]);
        screen(&mut view, width, height);
    }
}

#[test]
fn ten_thousand_volumes_are_scrolled_through() {
    let row = |number: u32| Row { volume_id: format!("vol-{number:017x}"), ..Row::default() };
    let mut view = View::new("http://127.0.0.1:8650", Sort::Volume);
    view.update((0..10_000).map(row).collect());
    let shown = |view: &mut View| -> Vec<u32> {
        let screen = screen(view, 30, 10);
        let ids = screen.lines().filter_map(|line| line.strip_prefix("vol-"));
        let ids = ids.map(|id| id.split(' ').next().unwrap_or_default());
        ids.map(|id| u32::from_str_radix(id, 16).unwrap()).collect()
    };
    assert_eq!(shown(&mut view), [0, 1, 2, 3, 4, 5]);
    view.scroll_pages(2);
    assert_eq!(shown(&mut view), [12, 13, 14, 15, 16, 17]);
    view.scroll(-13);
    assert_eq!(shown(&mut view), [0, 1, 2, 3, 4, 5]);
    view.scroll(isize::MAX);
    assert_eq!(shown(&mut view), [9_994, 9_995, 9_996, 9_997, 9_998, 9_999]);
    view.reverse();
    view.scroll(isize::MIN);
    assert_eq!(shown(&mut view), [9_999, 9_998, 9_997, 9_996, 9_995, 9_994]);
    // Most are deleted: there is nothing to scroll past any more.
    view.scroll(5_000);
    view.update((0..3).map(row).collect());
    assert_eq!(shown(&mut view), [2, 1, 0]);
}

#[test]
fn a_server_that_is_away_leaves_what_was_seen_last() {
    let mut view = View::new("http://127.0.0.1:8650", Sort::Iops);
    view.update(rows(Sort::Iops));
    view.fail("no server at 127.0.0.1:8650".to_owned());
    let away = screen(&mut view, 80, 8);
    assert!(away.ends_with("no newer sample: no server at 127.0.0.1:8650; trying again"), "{away}");
    assert!(away.contains("vol-0000000000000000b gp2"), "{away}");
    view.update(rows(Sort::Iops));
    assert!(screen(&mut view, 80, 8).ends_with("scroll"));
}

#[test]
fn keys_end_it() {
    let mut view = View::new("http://127.0.0.1:8650", Sort::Iops);
    let mut press = |code, modifiers| obey(&mut view, KeyEvent::new(code, modifiers));
    assert!(!press(KeyCode::Char('q'), KeyModifiers::NONE));
    assert!(!press(KeyCode::Esc, KeyModifiers::NONE));
    assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(press(KeyCode::Char('c'), KeyModifiers::NONE));
    for code in [KeyCode::Home, KeyCode::End, KeyCode::PageDown, KeyCode::Up, KeyCode::Left] {
        assert!(press(code, KeyModifiers::NONE), "{code}");
    }
}
