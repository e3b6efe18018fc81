//! Handshakes, byte for byte, written from the protocol text. Both roles are checked against them.

mod nbd_support;

use evenkeel_wire::nbd::constants::{HANDSHAKE_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, OPTION_BYTES_MAX};
use evenkeel_wire::nbd::handshake::{
    Client, ClientClose, ClientGoal, ClientPlan, ClientStep, ClientViolation, CloseReason,
    Negotiated, RemoteBlockSizes, RemoteExport, RemoteName, Server, ServerStep,
};
use nbd_support::{
    DESCRIPTION, EXPORT, Hex, Transcript, bytes, export_info, feed_client, feed_server, play,
    play_client, play_server,
};

const GREETING: &str = "
S: 4e42444d41474943 49484156454f5054 0003      ; NBDMAGIC IHAVEOPT, FIXED_NEWSTYLE | NO_ZEROES
C: 00000003                                    ; C_FIXED_NEWSTYLE | C_NO_ZEROES
";

const STRUCTURED: &str = "
C: 49484156454f5054 00000008 00000000          ; NBD_OPT_STRUCTURED_REPLY
S: 0003e889045565a9 00000008 00000001 00000000 ; NBD_REP_ACK
";

const ABORT: &str = "
C: 49484156454f5054 00000002 00000000          ; NBD_OPT_ABORT
S: 0003e889045565a9 00000002 00000001 00000000 ; NBD_REP_ACK
";

const SET_CONTEXT: &str = r#"
C: 49484156454f5054 0000000a 00000030          ; NBD_OPT_SET_META_CONTEXT, 48 bytes
   00000015 "vol-0123456789abcdef0"            ; export name, 21 bytes
   00000001 0000000f "base:allocation"         ; one query, 15 bytes
S: 0003e889045565a9 0000000a 00000004 00000013 ; NBD_REP_META_CONTEXT, 19 bytes
   00000001 "base:allocation"                  ; context id 1
S: 0003e889045565a9 0000000a 00000001 00000000 ; NBD_REP_ACK
"#;

const GO: &str = r#"
C: 49484156454f5054 00000007 00000021          ; NBD_OPT_GO, 33 bytes
   00000015 "vol-0123456789abcdef0"            ; export name, 21 bytes
   0003 0001 0002 0003                         ; 3 requests: NAME, DESCRIPTION, BLOCK_SIZE
S: 0003e889045565a9 00000007 00000003 0000000c ; NBD_REP_INFO, 12 bytes
   0000 0000000040000000 0ded                  ; NBD_INFO_EXPORT: 1 GiB, transmission flags
S: 0003e889045565a9 00000007 00000003 0000000e ; NBD_REP_INFO, 14 bytes
   0003 00000200 00001000 02000000             ; NBD_INFO_BLOCK_SIZE: 512, 4096, 32 MiB
S: 0003e889045565a9 00000007 00000003 00000017 ; NBD_REP_INFO, 23 bytes
   0001 "vol-0123456789abcdef0"                ; NBD_INFO_NAME
S: 0003e889045565a9 00000007 00000003 0000000b ; NBD_REP_INFO, 11 bytes
   0002 "1 GiB gp3"                            ; NBD_INFO_DESCRIPTION
S: 0003e889045565a9 00000007 00000001 00000000 ; NBD_REP_ACK
"#;

const EXPORT_NAME_NO_ZEROES: &str = r#"
C: 49484156454f5054 00000001 00000015          ; NBD_OPT_EXPORT_NAME, 21 bytes
   "vol-0123456789abcdef0"
S: 0000000040000000 0d6d                       ; 1 GiB, transmission flags (no SEND_DF)
"#;

const LIST: &str = r#"
C: 49484156454f5054 00000003 00000000          ; NBD_OPT_LIST
S: 0003e889045565a9 00000003 00000002 00000022 ; NBD_REP_SERVER, 34 bytes
   00000015 "vol-0123456789abcdef0" "1 GiB gp3"
S: 0003e889045565a9 00000003 00000002 00000019 ; NBD_REP_SERVER, 25 bytes
   00000015 "vol-0123456789abcdef1"
S: 0003e889045565a9 00000003 00000001 00000000 ; NBD_REP_ACK
"#;

fn plan(goal: ClientGoal) -> ClientPlan {
    ClientPlan { export: EXPORT.into(), goal, structured_replies: false, base_allocation: false }
}

fn full_plan(goal: ClientGoal) -> ClientPlan {
    ClientPlan { structured_replies: true, base_allocation: true, ..plan(goal) }
}

fn remote_export() -> RemoteExport {
    RemoteExport {
        size_bytes: 1 << 30,
        transmission_flags: 0x0ded,
        structured_replies: true,
        base_allocation: Some(1),
        block_sizes: Some(RemoteBlockSizes {
            bytes_min: 512,
            bytes_preferred: 4096,
            payload_bytes_max: 32 << 20,
        }),
        name: Some(EXPORT.into()),
        description: Some(DESCRIPTION.into()),
    }
}

#[test]
fn go_with_everything() {
    let conversation = [GREETING, STRUCTURED, SET_CONTEXT, GO];
    let negotiated = Negotiated {
        export: export_info(),
        structured_replies: true,
        base_allocation: true,
        block_size_requested: true,
    };
    assert_eq!(play_server(&conversation), Some(ServerStep::Ready(negotiated)));
    let ready = ClientStep::Ready(remote_export());
    assert_eq!(play_client(&full_plan(ClientGoal::Transmit), &conversation), Some(ready));
}

/// GO as nbd-client sends it: no information requests at all.
const GO_WITHOUT_REQUESTS: &str = r#"
C: 49484156454f5054 00000007 0000001b          ; NBD_OPT_GO, 27 bytes
   00000015 "vol-0123456789abcdef0" 0000       ; export name, no requests
S: 0003e889045565a9 00000007 00000003 0000000c ; NBD_REP_INFO, 12 bytes
   0000 0000000040000000 0d6d                  ; NBD_INFO_EXPORT: 1 GiB, transmission flags
S: 0003e889045565a9 00000007 00000003 0000000e ; NBD_REP_INFO, 14 bytes
   0003 00000001 00001000 02000000             ; NBD_INFO_BLOCK_SIZE: 1, 4096, 32 MiB
S: 0003e889045565a9 00000007 00000001 00000000 ; NBD_REP_ACK
"#;

#[test]
fn client_that_asks_for_no_block_sizes_is_held_to_none() {
    let block_bytes = |conversation: &[&str]| match play_server(conversation) {
        Some(ServerStep::Ready(negotiated)) => negotiated.terms().block_bytes_min,
        other => panic!("{other:?}"),
    };
    assert_eq!(block_bytes(&[GREETING, GO_WITHOUT_REQUESTS]), 1);
    assert_eq!(block_bytes(&[GREETING, EXPORT_NAME_NO_ZEROES]), 1);
    assert_eq!(block_bytes(&[GREETING, STRUCTURED, SET_CONTEXT, GO]), 512);
}

#[test]
fn an_export_that_may_not_be_had_now_is_refused_with_the_reason() {
    let name = r#"00000015 "vol-0123456789abcdef0""#;
    let options = [
        format!("49484156454f5054 00000007 0000001b {name} 0000"),
        format!("49484156454f5054 00000006 0000001b {name} 0000"),
        r#"49484156454f5054 00000001 00000015 "vol-0123456789abcdef0""#.to_owned(),
    ];
    for option in &options {
        let mut server = Server::new();
        assert!(matches!(server.poll_output(), Some(ServerStep::Send(_))));
        server.handle(&bytes("00000003"));
        let said = bytes(option);
        assert_eq!(server.handle(&said), said.len());
        assert_eq!(server.poll_output(), Some(ServerStep::WantExport(EXPORT.into())));
        server.deny("too many connections");
        let number = &said[8..12];
        if number == [0, 0, 0, 1] {
            let reason = CloseReason::Denied("too many connections".into());
            assert_eq!(server.poll_output(), Some(ServerStep::Close(reason)));
            continue;
        }
        let Some(ServerStep::Send(reply)) = server.poll_output() else { panic!("no reply") };
        let mut expected = bytes("0003e889045565a9");
        expected.extend_from_slice(number);
        expected.extend(bytes(r#"80000002 00000014 "too many connections""#)); // ERR_POLICY
        assert_eq!(Hex(&reply), Hex(&expected));
        // The export may be granted to the next option.
        assert_eq!(server.handle(&said), said.len());
        server.export(Some(export_info()));
        assert!(matches!(server.poll_output(), Some(ServerStep::Send(_))));
    }
}

#[test]
fn export_name_without_zeroes() {
    let conversation = [GREETING, EXPORT_NAME_NO_ZEROES];
    let negotiated = Negotiated {
        export: export_info(),
        structured_replies: false,
        base_allocation: false,
        block_size_requested: false,
    };
    assert_eq!(play_server(&conversation), Some(ServerStep::Ready(negotiated)));
    let remote =
        RemoteExport { size_bytes: 1 << 30, transmission_flags: 0x0d6d, ..RemoteExport::default() };
    let ended = play_client(&plan(ClientGoal::TransmitOldWay), &conversation);
    assert_eq!(ended, Some(ClientStep::Ready(remote)));
}

#[test]
fn export_name_with_zeroes_for_the_default_export() {
    let server = "
S: 4e42444d41474943 49484156454f5054 0003
C: 00000001                                    ; C_FIXED_NEWSTYLE only
C: 49484156454f5054 00000001 00000000          ; NBD_OPT_EXPORT_NAME, the default export
S: 0000000040000000 0d6d 00*124                ; 1 GiB, transmission flags, zeroes
";
    assert!(matches!(play_server(&[server]), Some(ServerStep::Ready(_))));
    let client = server.replace("0003\nC", "0001\nC"); // a server without NO_ZEROES
    let default = ClientPlan { export: String::new(), ..plan(ClientGoal::TransmitOldWay) };
    assert!(matches!(play_client(&default, &[&client]), Some(ClientStep::Ready(_))));
}

#[test]
fn a_server_of_plain_newstyle_gets_export_name_at_once() {
    let conversation = r#"
S: 4e42444d41474943 49484156454f5054 0000      ; no handshake flags
C: 00000000
C: 49484156454f5054 00000001 00000015 "vol-0123456789abcdef0"
S: 0000000040000000 0001 00*124
"#;
    let ended = play_client(&full_plan(ClientGoal::Transmit), &[conversation]);
    assert!(matches!(ended, Some(ClientStep::Ready(_))));
    let greeting = "S: 4e42444d41474943 49484156454f5054 0000\n";
    let ended = play_client(&plan(ClientGoal::List), &[greeting]);
    let violation = ClientClose::Violation(ClientViolation::NotFixedNewstyle);
    assert_eq!(ended, Some(ClientStep::Close(violation)));
}

#[test]
fn list_then_abort() {
    let conversation = [GREETING, LIST, ABORT];
    assert_eq!(play_server(&conversation), Some(ServerStep::Close(CloseReason::Aborted)));
    let name = |name: &str, description: &str| RemoteName {
        name: name.into(),
        description: description.into(),
    };
    let listed = vec![name(EXPORT, DESCRIPTION), name("vol-0123456789abcdef1", "")];
    let ended = play_client(&plan(ClientGoal::List), &conversation);
    assert_eq!(ended, Some(ClientStep::Listed(listed)));
}

#[test]
fn info_describes_and_stays_in_the_handshake() {
    let info = GO.replace(" 00000007 ", " 00000006 ");
    let conversation = [GREETING, STRUCTURED, SET_CONTEXT, &info, ABORT];
    assert_eq!(play_server(&conversation), Some(ServerStep::Close(CloseReason::Aborted)));
    let described = ClientStep::Described(remote_export());
    assert_eq!(play_client(&full_plan(ClientGoal::Describe), &conversation), Some(described));
}

#[test]
fn unknown_export_is_named_and_the_client_may_continue() {
    let go = r#"
C: 49484156454f5054 00000007 0000000e          ; NBD_OPT_GO, 14 bytes
   00000002 "xy" 0003 0001 0002 0003
S: 0003e889045565a9 00000007 80000006 00000050 ; NBD_REP_ERR_UNKNOWN, 80 bytes
   "no export " 22 "xy" 22 " for this host; check that the volume exists and is attached to it"
"#;
    let ended = play_server(&[GREETING, go, ABORT]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::Aborted)));
    let plan = ClientPlan { export: "xy".into(), ..plan(ClientGoal::Transmit) };
    let Some(ClientStep::Close(ClientClose::Refused { option: 7, reply: 0x8000_0006, message })) =
        play_client(&plan, &[GREETING, go, ABORT])
    else {
        panic!("the client does not see the refusal");
    };
    assert!(message.starts_with(r#"no export "xy" for this host"#), "{message}");
}

#[test]
fn unsupported_option_is_refused_and_its_data_is_skipped() {
    let options = r#"
C: 49484156454f5054 00000005 00000000          ; NBD_OPT_STARTTLS
S: 0003e889045565a9 00000005 80000001 00000028 ; NBD_REP_ERR_UNSUP
   "TLS is not supported; connect without it"
C: 49484156454f5054 00000005 00000001 ff       ; NBD_OPT_STARTTLS with data
S: 0003e889045565a9 00000005 80000003 00000021 ; NBD_REP_ERR_INVALID
   "the option takes no data, got 1 B"
C: 49484156454f5054 00000003 00000002 ffff     ; NBD_OPT_LIST with data
S: 0003e889045565a9 00000003 80000003 00000021
   "the option takes no data, got 2 B"
C: 49484156454f5054 00000008 00000002 ffff     ; NBD_OPT_STRUCTURED_REPLY with data
S: 0003e889045565a9 00000008 80000003 00000021
   "the option takes no data, got 2 B"
C: 49484156454f5054 0000000b 00000000          ; NBD_OPT_EXTENDED_HEADERS
S: 0003e889045565a9 0000000b 80000001 0000001a
   "option 11 is not supported"
C: 49484156454f5054 0000002a 00020000 ab*131072 ; an unknown option, with 128 KiB of data
S: 0003e889045565a9 0000002a 80000001 0000001a
   "option 42 is not supported"
C: 49484156454f5054 00000002 00000003 ffffff   ; NBD_OPT_ABORT, whose data is ignored
S: 0003e889045565a9 00000002 00000001 00000000
"#;
    let ended = play_server(&[GREETING, options]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::Aborted)));
}

#[test]
fn tls_comes_before_every_other_option_where_it_is_required() {
    let refused = r#"
C: 49484156454f5054 00000003 00000000          ; NBD_OPT_LIST
S: 0003e889045565a9 00000003 80000005 00000047 ; NBD_REP_ERR_TLS_REQD
   "this address needs TLS; connect with nbds:// and the host's certificate"
C: 49484156454f5054 00000008 00000002 ffff     ; NBD_OPT_STRUCTURED_REPLY with data
S: 0003e889045565a9 00000008 80000005 00000047
   "this address needs TLS; connect with nbds:// and the host's certificate"
C: 49484156454f5054 00000005 00000001 ff       ; NBD_OPT_STARTTLS with data
S: 0003e889045565a9 00000005 80000003 00000021 ; NBD_REP_ERR_INVALID
   "the option takes no data, got 1 B"
"#;
    let start = r#"
C: 49484156454f5054 00000005 00000000          ; NBD_OPT_STARTTLS
S: 0003e889045565a9 00000005 00000001 00000000 ; NBD_REP_ACK
"#;
    let again = r#"
C: 49484156454f5054 00000005 00000000          ; NBD_OPT_STARTTLS within TLS
S: 0003e889045565a9 00000005 80000003 00000015 ; NBD_REP_ERR_INVALID
   "TLS is in use already"
"#;
    let with_tls = |conversation: &[&str]| play(|| Server::new().with_tls(), conversation);
    let started = with_tls(&[GREETING, refused, start]);
    assert_eq!(started, Some(ServerStep::StartTls));
    let ended = with_tls(&[GREETING, refused, ABORT]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::Aborted)));
    let ended = with_tls(&[GREETING, "C: 49484156454f5054 00000001 00000002 \"ab\""]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::TlsRequired)));
    let within = play(|| Server::new().within_tls(), &[GREETING, again, ABORT]);
    assert_eq!(within, Some(ServerStep::Close(CloseReason::Aborted)));
    // What follows the option in the same segment is left to the caller, who drops it.
    let mut server = Server::new().with_tls();
    let _ = server.poll_output();
    let input = bytes("00000003 49484156454f5054 00000005 00000000 ff ff");
    assert_eq!(server.handle(&input), input.len() - 2);
    assert!(matches!(server.poll_output(), Some(ServerStep::Send(_))));
    assert_eq!(server.poll_output(), Some(ServerStep::StartTls));
    assert_eq!(server.client_flags(), 3);
}

#[test]
fn malformed_and_oversized_options_are_refused() {
    let options = r#"
C: 49484156454f5054 00000007 00000003 000000   ; NBD_OPT_GO, too short for a name's length
S: 0003e889045565a9 00000007 80000003 0000002d ; NBD_REP_ERR_INVALID
   "the option's data ends before the export name"
C: 49484156454f5054 00000007 00000008          ; NBD_OPT_GO with a name that is not UTF-8
   00000002 61ff 0000
S: 0003e889045565a9 00000007 80000003 00000026
   "the export name is not UTF-8 at byte 1"
C: 49484156454f5054 00000006 00000007          ; NBD_OPT_INFO with a NUL in the name
   00000001 00 0000
S: 0003e889045565a9 00000006 80000003 00000028
   "the export name contains a NUL character"
C: 49484156454f5054 00000006 00000007          ; NBD_OPT_INFO with a byte too much
   00000000 0000 00
S: 0003e889045565a9 00000006 80000003 00000021
   "the option's data is 1 B too long"
C: 49484156454f5054 00000007 00001007          ; NBD_OPT_GO with a name of 4097 bytes
   00001001 61*4097 0000
S: 0003e889045565a9 00000007 80000009 0000002a ; NBD_REP_ERR_TOO_BIG
   "the export name of 4097 bytes exceeds 4096"
C: 49484156454f5054 00000007 00010001 61*65537 ; NBD_OPT_GO with more than 64 KiB of data
S: 0003e889045565a9 00000007 80000009 00000020
   "65537 bytes of data exceed 65536"
"#;
    assert_eq!(OPTION_BYTES_MAX, 65_536);
    let ended = play_server(&[GREETING, options, ABORT]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::Aborted)));
}

#[test]
fn contexts_need_structured_replies_and_an_export() {
    let early = r#"
C: 49484156454f5054 0000000a 00000008 00000000 00000000
S: 0003e889045565a9 0000000a 80000003 00000028 ; NBD_REP_ERR_INVALID
   "negotiate NBD_OPT_STRUCTURED_REPLY first"
C: 49484156454f5054 00000009 00000008 00000000 00000000
S: 0003e889045565a9 00000009 80000003 00000028
   "negotiate NBD_OPT_STRUCTURED_REPLY first"
"#;
    let unknown = r#"
C: 49484156454f5054 00000009 00000009 00000001 "z" 00000000
S: 0003e889045565a9 00000009 80000006 0000004f ; NBD_REP_ERR_UNKNOWN
   "no export " 22 "z" 22 " for this host; check that the volume exists and is attached to it"
"#;
    let ended = play_server(&[GREETING, early, STRUCTURED, unknown, ABORT]);
    assert_eq!(ended, Some(ServerStep::Close(CloseReason::Aborted)));
}

#[test]
fn listing_contexts_knows_the_wildcard_and_selecting_does_not() {
    let list = r#"
C: 49484156454f5054 00000009 00000008 00000000 00000000 ; LIST_META_CONTEXT, no query: all
S: 0003e889045565a9 00000009 00000004 00000013 00000000 "base:allocation" ; id is reserved
S: 0003e889045565a9 00000009 00000001 00000000
C: 49484156454f5054 00000009 00000011 00000000          ; one query
   00000001 00000005 "base:"
S: 0003e889045565a9 00000009 00000004 00000013 00000000 "base:allocation"
S: 0003e889045565a9 00000009 00000001 00000000
C: 49484156454f5054 00000009 00000025 00000000          ; two queries that match nothing
   00000002 00000008 "base:foo" 0000000d "qemu:dirty-bm"
S: 0003e889045565a9 00000009 00000001 00000000
"#;
    let set = r#"
C: 49484156454f5054 0000000a 00000008 00000000 00000000 ; SET_META_CONTEXT, no query: none
S: 0003e889045565a9 0000000a 00000001 00000000
C: 49484156454f5054 0000000a 00000011 00000000 00000001 00000005 "base:"
S: 0003e889045565a9 0000000a 00000001 00000000
"#;
    let ended = play_server(&[GREETING, STRUCTURED, list, set, GO]);
    let Some(ServerStep::Ready(negotiated)) = ended else { panic!("{ended:?}") };
    assert!(!negotiated.base_allocation);
}

#[test]
fn a_selection_counts_for_its_own_export_and_until_the_next_one() {
    // Selected for the default export, but used by its name: not the same export name.
    let other = r#"
C: 49484156454f5054 0000000a 0000001b 00000000 00000001 0000000f "base:allocation"
S: 0003e889045565a9 0000000a 00000004 00000013 00000001 "base:allocation"
S: 0003e889045565a9 0000000a 00000001 00000000
"#;
    // A later selection replaces an earlier one, "including when this command fails".
    let failing = r#"
C: 49484156454f5054 0000000a 00000001 00
S: 0003e889045565a9 0000000a 80000003 0000002d
   "the option's data ends before the export name"
"#;
    for undoing in [other, failing] {
        let ended = play_server(&[GREETING, STRUCTURED, SET_CONTEXT, undoing, GO]);
        let Some(ServerStep::Ready(negotiated)) = ended else { panic!("{ended:?}") };
        assert!(!negotiated.base_allocation && negotiated.structured_replies);
    }
}

#[test]
fn server_closes_the_connection_on_an_invalid_handshake() {
    let greeting = "S: 4e42444d41474943 49484156454f5054 0003\n";
    let after = [
        ("C: 00000004", CloseReason::ClientFlags(4)),
        ("C: 80000003", CloseReason::ClientFlags(0x8000_0003)),
        (
            "C: 00000003 49484156454f5055 00000003 00000000",
            CloseReason::OptionMagic(0x4948_4156_454f_5055),
        ),
        (
            r#"C: 00000003 49484156454f5054 00000001 00000001 "x""#,
            CloseReason::NoSuchExport("x".into()),
        ),
        (
            "C: 00000003 49484156454f5054 00000001 00000001 ff",
            CloseReason::BadExportName("the export name is not UTF-8 at byte 0".into()),
        ),
        (
            "C: 00000003 49484156454f5054 00000001 00001001 61*4097",
            CloseReason::BadExportName("an export name of 4097 bytes exceeds 4096".into()),
        ),
        (
            "C: 00000003 49484156454f5054 0000002a 00400001",
            CloseReason::TooManyBytes(HANDSHAKE_BYTES_MAX + 1),
        ),
    ];
    for (said, reason) in after {
        assert_eq!(play_server(&[greeting, said]), Some(ServerStep::Close(reason)));
    }
}

#[test]
fn endless_options_end_the_handshake() {
    let mut server = Server::new();
    let mut transcript = Transcript::default();
    let option = bytes("49484156454f5054 0000002a 00000000");
    feed_server(&mut server, &bytes("00000003"), &mut transcript);
    for _ in 0..HANDSHAKE_OPTIONS_MAX {
        feed_server(&mut server, &option, &mut transcript);
        assert_eq!(transcript.end, None);
    }
    feed_server(&mut server, &option, &mut transcript);
    assert_eq!(transcript.end, Some(ServerStep::Close(CloseReason::TooManyOptions)));
}

#[test]
fn pipelined_options_are_answered_one_by_one() {
    let mut server = Server::new();
    let mut transcript = Transcript::default();
    feed_server(&mut server, &bytes("00000003"), &mut transcript);
    let option = bytes("49484156454f5054 00000008 00000000");
    // Output stays bounded: each answer must be polled before the next option is read.
    let mut rest = &option.repeat(100)[..];
    for _ in 0..100 {
        let consumed = server.handle(rest);
        assert_eq!((consumed, server.handle(&rest[consumed..])), (option.len(), 0));
        assert!(matches!(server.poll_output(), Some(ServerStep::Send(reply)) if reply.len() == 20));
        assert_eq!(server.poll_output(), None);
        rest = &rest[consumed..];
    }
}

#[test]
fn a_client_falls_back_when_the_server_lacks_options() {
    let conversation = r#"
C: 49484156454f5054 00000008 00000000          ; NBD_OPT_STRUCTURED_REPLY
S: 0003e889045565a9 00000008 80000001 00000000 ; NBD_REP_ERR_UNSUP
C: 49484156454f5054 00000007 00000021          ; NBD_OPT_GO
   00000015 "vol-0123456789abcdef0" 0003 0001 0002 0003
S: 0003e889045565a9 00000007 80000001 00000000 ; NBD_REP_ERR_UNSUP
C: 49484156454f5054 00000001 00000015 "vol-0123456789abcdef0"
S: 0000000040000000 0001
"#;
    let ended = play_client(&full_plan(ClientGoal::Transmit), &[GREETING, conversation]);
    let remote =
        RemoteExport { size_bytes: 1 << 30, transmission_flags: 1, ..RemoteExport::default() };
    assert_eq!(ended, Some(ClientStep::Ready(remote)));
}

#[test]
fn endless_replies_end_the_handshake() {
    let mut client = Client::new(plan(ClientGoal::Transmit));
    let mut transcript = Transcript::default();
    let greeting = bytes("4e42444d41474943 49484156454f5054 0003");
    feed_client(&mut client, &greeting, &mut transcript);
    // An unknown information type, in replies of 64 KiB; up to 16 MiB of them are accepted.
    let reply = bytes("0003e889045565a9 00000007 00000003 00010000 ffff 00*65534");
    let borne = (16 << 20) / reply.len();
    for _ in 0..borne {
        feed_client(&mut client, &reply, &mut transcript);
        assert_eq!(transcript.end, None);
    }
    feed_client(&mut client, &reply, &mut transcript);
    let violation = ClientClose::Violation(ClientViolation::TooBig(65_536));
    assert_eq!(transcript.end, Some(ClientStep::Close(violation)));
}

#[test]
fn client_closes_the_connection_on_invalid_replies() {
    let list = "C: 49484156454f5054 00000003 00000000\n";
    let go = GO.split("S:").next().unwrap();
    let cases = [
        (
            ClientGoal::List,
            list,
            "0003e889045565a8 00000003 00000001 00000000",
            ClientViolation::ReplyMagic(0x3_e889_0455_65a8),
        ),
        (
            ClientGoal::List,
            list,
            "0003e889045565a9 00000002 00000001 00000000",
            ClientViolation::WrongOption(2),
        ),
        (
            ClientGoal::List,
            list,
            "0003e889045565a9 00000003 00000004 00000000",
            ClientViolation::UnexpectedReply(4),
        ),
        (
            ClientGoal::List,
            list,
            "0003e889045565a9 00000003 00000002 00010001",
            ClientViolation::TooBig(65_537),
        ),
        (
            ClientGoal::List,
            list,
            "0003e889045565a9 00000003 00000002 00000005 00000002 61",
            ClientViolation::Malformed(2),
        ),
        (
            ClientGoal::List,
            list,
            "0003e889045565a9 00000003 00000001 00000001 00",
            ClientViolation::Malformed(1),
        ),
        (
            ClientGoal::Transmit,
            go,
            "0003e889045565a9 00000007 00000001 00000000",
            ClientViolation::NoExportInfo,
        ),
        (
            ClientGoal::Transmit,
            go,
            "0003e889045565a9 00000007 00000003 0000000e 0003 00000003 00001000 02000000",
            ClientViolation::BlockSizes(RemoteBlockSizes {
                bytes_min: 3,
                bytes_preferred: 4096,
                payload_bytes_max: 32 << 20,
            }),
        ),
    ];
    for (goal, said, reply, violation) in cases {
        let ended = play_client(&plan(goal), &[GREETING, said, "S: ", reply]);
        assert_eq!(ended, Some(ClientStep::Close(ClientClose::Violation(violation))));
    }
}
