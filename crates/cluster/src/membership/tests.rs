//! Each transition of a node's life by itself, and what holds whatever happens in which order.

mod cluster;
mod histories;
mod orders;

use core::time::Duration;

use super::*;

/// What an API address of another node is.
const LEADER: &str = "10.0.0.2:8650";

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn lease(until_s: u64) -> Lease {
    Lease { until: s(until_s), is_lost: false, must_reload: false }
}

fn follows() -> Answer {
    Answer::Follows { api: Some(LEADER.parse().unwrap()), text: "n2 leads".to_owned() }
}

fn unknown(is_no_space: bool) -> Answer {
    Answer::Unknown { text: "etcd is away".to_owned(), is_no_space }
}

const ALONE: Seen = Seen { has_others: false, is_empty: false };
const AMONG: Seen = Seen { has_others: true, is_empty: false };
const EMPTY: Seen = Seen { has_others: true, is_empty: true };

/// A node that has joined, has started at 0 s, and has asked its first question.
fn started(seen: Seen) -> Membership {
    let (mut node, first) = Membership::new();
    assert_eq!(first, [Action::Join]);
    let joined = node.handle(Event::JoinAnswered(JoinAnswer::Joined), s(0));
    assert_eq!(joined, [Action::Start]);
    let started = node.handle(Event::StartAnswered(Some(seen)), s(0));
    assert_eq!(started, [Action::AskStore, Action::Ask(Question(1), Asked::Campaign)]);
    node
}

/// A node that follows another one since 0 s.
fn following(seen: Seen) -> Membership {
    let mut node = started(seen);
    let actions = node.handle(Event::ElectionAnswered(Question(1), follows()), s(0));
    let expected = [
        Action::SetFollows(true),
        Action::Log(Level::Info, "n2 leads".to_owned()),
        Action::Follow(Some(LEADER.parse().unwrap())),
        Action::Relay,
    ];
    assert_eq!(actions, expected);
    assert_eq!(node.handle(Event::RelayAnswered(Ok(())), s(0)), []);
    node
}

/// A node that leads since 0 s with a lease until 3 s.
fn leading(seen: Seen) -> Membership {
    let mut node = started(seen);
    let won = Event::ElectionAnswered(Question(1), Answer::Leads(lease(3)));
    assert_eq!(node.handle(won, s(0)), [Action::Lead(Question(1))]);
    assert_eq!(node.leads(), Some(Question(1)));
    node
}

fn end_term(closes_volumes: bool) -> Action {
    Action::EndTerm { question: Question(1), closes_volumes }
}

fn term_ended(result: Result<(), String>, lease: Lease) -> Event {
    Event::TermEnded(Question(1), lease, result)
}

#[test]
fn joining_asks_again_until_etcd_answers_and_logs_that_once() {
    let (mut node, _) = Membership::new();
    let away = || Event::JoinAnswered(JoinAnswer::Unavailable("no route".to_owned()));
    let logged = Action::Log(Level::Warn, "waits until etcd answers: no route".to_owned());
    assert_eq!(node.handle(away(), s(1)), [logged]);
    assert_eq!(node.deadline(), Some(s(1) + RETRY));
    assert_eq!(node.handle(Event::Time, s(1) + RETRY / 2), []);
    assert_eq!(node.handle(Event::Time, s(1) + RETRY), [Action::Join]);
    assert_eq!(node.deadline(), None);
    assert_eq!(node.handle(away(), s(2)), []);
}

#[test]
fn joining_ends_with_a_refusal_or_a_stop() {
    let (mut node, _) = Membership::new();
    let refused = node.handle(Event::JoinAnswered(JoinAnswer::Refused), s(0));
    assert_eq!(refused, [Action::Exit(Exit::Refused)]);

    // A question that is open is waited for: its answer may hold something.
    let (mut node, _) = Membership::new();
    assert_eq!(node.handle(Event::StopRequested, s(0)), []);
    let joined = node.handle(Event::JoinAnswered(JoinAnswer::Joined), s(1));
    assert_eq!(joined, [Action::Exit(Exit::Stopped)]);

    let (mut node, _) = Membership::new();
    node.handle(Event::JoinAnswered(JoinAnswer::Unavailable(String::new())), s(0));
    assert_eq!(node.handle(Event::StopRequested, s(0)), [Action::Exit(Exit::Stopped)]);
}

#[test]
fn starting_that_fails_ends_the_process_and_a_fence_meanwhile_closes_it() {
    let joined = || {
        let (mut node, _) = Membership::new();
        node.handle(Event::JoinAnswered(JoinAnswer::Joined), s(0));
        node
    };
    let failed = joined().handle(Event::StartAnswered(None), s(1));
    assert_eq!(failed, [Action::Exit(Exit::Refused)]);
    let mut node = joined();
    assert_eq!(node.handle(Event::Fenced, s(0)), []);
    assert_eq!(node.handle(Event::StartAnswered(Some(AMONG)), s(1)), [Action::Close]);
    let mut node = joined();
    assert_eq!(node.handle(Event::StopRequested, s(0)), []);
    let started = node.handle(Event::StartAnswered(Some(AMONG)), s(1));
    assert_eq!(started[0], Action::AnnounceLeaving);
}

#[test]
fn a_follower_asks_again_after_an_interval_and_at_once_when_the_key_changes() {
    let mut node = following(AMONG);
    assert_eq!(node.handle(Event::Time, ELECTION_INTERVAL - ms(1)), []);
    let asked = |question| Action::Ask(Question(question), Asked::Campaign);
    assert_eq!(node.handle(Event::Time, ELECTION_INTERVAL), [asked(2)]);
    // While a question is open, a change makes the next one due.
    assert_eq!(node.handle(Event::LeaderChanged, s(1)), []);
    assert_eq!(node.handle(Event::ElectionAnswered(Question(2), follows()), s(1)), [asked(3)]);
    assert_eq!(node.handle(Event::ElectionAnswered(Question(3), follows()), s(1)), []);
    assert_eq!(node.handle(Event::LeaderChanged, s(1)), [asked(4)]);
}

#[test]
fn a_follower_that_does_not_know_the_leader_keeps_serving_and_says_so_once() {
    let mut node = following(AMONG);
    node.handle(Event::Time, ELECTION_INTERVAL);
    let actions = node.handle(Event::ElectionAnswered(Question(2), unknown(false)), s(1));
    let text = "the leader is not known: etcd is away".to_owned();
    assert_eq!(actions[..2], [Action::Log(Level::Info, text), Action::Follow(None)]);
    assert!(
        node.handle(Event::Time, s(1) + RETRY).contains(&Action::Ask(Question(3), Asked::Campaign))
    );
    // With no space in etcd, this node may clear it.
    let actions = node.handle(Event::ElectionAnswered(Question(3), unknown(true)), s(2));
    assert!(actions.contains(&Action::SetFollows(false)), "{actions:?}");
}

#[test]
fn a_leader_of_an_earlier_process_at_this_address_leads_nowhere() {
    let mut node = started(AMONG);
    let own = Answer::Follows { api: None, text: "n1 leads".to_owned() };
    let actions = node.handle(Event::ElectionAnswered(Question(1), own), s(0));
    assert_eq!(actions, [Action::Log(Level::Info, "n1 leads".to_owned()), Action::Relay]);
}

#[test]
fn a_relay_whose_address_is_in_use_is_tried_again() {
    let mut node = started(AMONG);
    node.handle(Event::ElectionAnswered(Question(1), follows()), s(0));
    let failed = || Event::RelayAnswered(Err("in use".to_owned()));
    let logged = Action::Log(Level::Info, "in use".to_owned());
    assert_eq!(node.handle(failed(), s(0)), [logged]);
    assert_eq!(node.handle(Event::Time, RETRY), [Action::Relay]);
    assert_eq!(node.handle(failed(), RETRY), []);
}

#[test]
fn a_follower_that_is_elected_frees_the_address_before_it_leads() {
    let mut node = following(AMONG);
    node.handle(Event::Time, ELECTION_INTERVAL);
    let won = Event::ElectionAnswered(Question(2), Answer::Leads(lease(4)));
    let expected = [
        Action::SetFollows(false),
        Action::Follow(None),
        Action::StopRelay,
        Action::Lead(Question(2)),
    ];
    assert_eq!(node.handle(won.clone(), s(1))[..4], expected);
    // A repeated answer starts no second term.
    assert_eq!(node.handle(won, s(1)), []);
    // While it leads it does not ask.
    assert_eq!(node.handle(Event::LeaderChanged, s(1)), []);
}

#[test]
fn a_leader_ends_its_term_when_the_lease_is_lost_and_asks_again() {
    let mut node = leading(AMONG);
    let lost = Lease { is_lost: true, ..lease(3) };
    let actions = node.handle(Event::LeaseSeen(Question(1), lost), ms(900));
    assert_eq!(actions, [end_term(false), Action::CloseFleet(Question(1))]);
    // Old news do not bring it back.
    assert_eq!(node.handle(Event::LeaseSeen(Question(1), lease(9)), ms(900)), []);
    let ended = node.handle(term_ended(Err("no commit".to_owned()), lost), ms(950));
    let text = "this node is not the leader any more: no commit".to_owned();
    let logged = Action::Log(Level::Warn, text);
    assert_eq!(ended, [logged, Action::Ask(Question(2), Asked::Campaign)]);
    assert_eq!(node.leads(), None);
}

#[test]
fn a_leader_that_hears_nothing_of_its_lease_ends_its_term_in_bounded_time() {
    let mut node = leading(AMONG);
    node.handle(Event::StoreAnswered, s(0));
    node.handle(Event::LeaseSeen(Question(1), lease(4)), s(1));
    node.handle(Event::StoreAnswered, s(3));
    assert_eq!(node.handle(Event::Time, s(4) + UNHELD_MAX - ms(1)), [Action::AskStore]);
    assert_eq!(node.deadline(), Some(s(4) + UNHELD_MAX));
    let actions = node.handle(Event::Time, s(4) + UNHELD_MAX);
    assert_eq!(actions, [end_term(false), Action::CloseFleet(Question(1))]);
    assert_eq!(node.handle(term_ended(Ok(()), lease(4)), s(11)), [Action::Resign(Question(1))]);
    let asks = Action::Ask(Question(2), Asked::Campaign);
    assert_eq!(node.handle(Event::ResignAnswered(Question(1)), s(11)), [asks]);
}

#[test]
fn a_leader_whose_etcd_has_other_data_resigns() {
    let mut node = leading(AMONG);
    let reload = Lease { must_reload: true, ..lease(3) };
    let actions = node.handle(Event::LeaseSeen(Question(1), reload), ms(1));
    assert_eq!(actions, [end_term(false), Action::CloseFleet(Question(1))]);
    let actions = node.handle(term_ended(Ok(()), reload), ms(2));
    assert!(matches!(&actions[0], Action::Log(Level::Warn, text) if text.contains("other data")));
    assert_eq!(actions[1..], [Action::Resign(Question(1))]);
}

#[test]
fn a_node_that_cannot_run_the_control_plane_leaves_that_to_others_for_a_while() {
    let mut node = leading(AMONG);
    let failed = term_ended(Err("no port".to_owned()), lease(3));
    assert_eq!(node.handle(failed, ms(10)), [Action::Resign(Question(1))]);
    let actions = node.handle(Event::ResignAnswered(Question(1)), ms(20));
    let text = "cannot run the control plane: no port".to_owned();
    assert_eq!(actions, [Action::Log(Level::Warn, text)]);
    node.handle(Event::StoreAnswered, s(2));
    assert_eq!(node.handle(Event::Time, LEAD_AGAIN), []);
    let asks = Action::Ask(Question(2), Asked::Campaign);
    assert_eq!(node.handle(Event::Time, LEAD_AGAIN + ms(20)), [asks]);
}

#[test]
fn a_leader_that_is_fenced_ends_its_term_resigns_closes_and_joins_again() {
    let mut node = leading(AMONG);
    let actions = node.handle(Event::Fenced, s(1));
    assert_eq!(actions, [end_term(false), Action::CloseFleet(Question(1))]);
    let failed = term_ended(Err("no store".to_owned()), lease(3));
    assert_eq!(node.handle(failed, s(1)), [Action::Resign(Question(1))]);
    assert_eq!(node.handle(Event::ResignAnswered(Question(1)), s(1)), [Action::Close]);
    assert_eq!(node.handle(Event::Time, s(30)), []);
    let closed = node.handle(Event::CloseAnswered, s(31));
    assert!(matches!(&closed[0], Action::Log(Level::Warn, text) if text.contains("has fenced")));
    assert_eq!(closed[1..], [Action::Join]);
    node.handle(Event::JoinAnswered(JoinAnswer::Joined), s(31));
    let started = node.handle(Event::StartAnswered(Some(AMONG)), s(31));
    // Numbers of questions are not used twice.
    assert_eq!(started[1], Action::Ask(Question(2), Asked::Campaign));
}

#[test]
fn a_fenced_node_that_is_to_stop_does_not_join_again() {
    let mut node = following(AMONG);
    assert_eq!(node.handle(Event::Fenced, s(0)), [Action::Close]);
    assert_eq!(node.handle(Event::StopRequested, s(0)), []);
    assert_eq!(node.handle(Event::CloseAnswered, s(1)), [Action::Exit(Exit::Stopped)]);
}

#[test]
fn a_data_plane_that_fails_ends_the_process_with_its_reason() {
    let mut node = following(AMONG);
    let failed = node.handle(Event::DataPlaneFailed("core 0".to_owned()), s(0));
    assert_eq!(failed, [Action::Close]);
    // The first reason counts.
    assert_eq!(node.handle(Event::Fenced, s(0)), []);
    let exit = Action::Exit(Exit::Failed("core 0".to_owned()));
    assert_eq!(node.handle(Event::CloseAnswered, s(1)), [exit]);
}

#[test]
fn a_leadership_that_is_won_while_the_node_closes_is_given_up_before_it_exits() {
    let mut node = started(AMONG);
    assert_eq!(node.handle(Event::Fenced, s(0)), [Action::Close]);
    assert_eq!(node.handle(Event::CloseAnswered, s(1)), []);
    let won = Event::ElectionAnswered(Question(1), Answer::Leads(lease(3)));
    assert_eq!(node.handle(won.clone(), s(2)), [Action::Resign(Question(1))]);
    assert_eq!(node.handle(won, s(2)), []);
    let resigned = node.handle(Event::ResignAnswered(Question(1)), s(2));
    assert_eq!(resigned[1..], [Action::Join]);
}

#[test]
fn leaving_hands_over_first_and_ends_when_no_volume_is_left() {
    let mut node = following(AMONG);
    assert_eq!(node.handle(Event::StopRequested, s(0)), [Action::AnnounceLeaving]);
    assert_eq!(node.handle(Event::StopRequested, s(0)), []);
    assert_eq!(node.handle(Event::ClusterSeen(EMPTY), s(0)), [], "it is not announced yet");
    node.handle(Event::ClusterSeen(AMONG), s(0));
    assert_eq!(node.handle(Event::LeavingAnnounced, s(0)), []);
    let left = node.handle(Event::ClusterSeen(EMPTY), ms(100));
    assert_eq!(left, [Action::LimitShutdown, Action::Close]);
    assert_eq!(node.handle(Event::CloseAnswered, s(1)), [Action::Exit(Exit::Stopped)]);
}

#[test]
fn leaving_ends_after_a_while_also_if_volumes_are_left() {
    let mut node = leading(AMONG);
    node.handle(Event::LeaseSeen(Question(1), lease(90)), s(1));
    node.handle(Event::StopRequested, s(1));
    node.handle(Event::LeavingAnnounced, s(2));
    assert_eq!(node.handle(Event::Time, s(2) + DRAIN_MAX - ms(1)), []);
    assert_eq!(node.deadline(), Some(s(2) + DRAIN_MAX));
    let expected = [Action::LimitShutdown, end_term(false), Action::CloseFleet(Question(1))];
    assert_eq!(node.handle(Event::Time, s(2) + DRAIN_MAX), expected);
}

#[test]
fn the_last_leader_that_leaves_closes_all_volumes_and_then_releases_its_lease() {
    let mut node = leading(ALONE);
    node.handle(Event::StopRequested, s(1));
    let ends = node.handle(Event::LeavingAnnounced, s(1));
    assert_eq!(ends, [Action::LimitShutdown, end_term(true)]);
    assert_eq!(node.deadline(), Some(s(1) + CLOSE_MAX));
    let late = node.handle(Event::Time, s(1) + CLOSE_MAX);
    assert_eq!(late, [Action::CloseFleet(Question(1))]);
    assert_eq!(node.handle(term_ended(Ok(()), lease(3)), s(32)), [Action::Resign(Question(1))]);
    assert_eq!(node.handle(Event::ResignAnswered(Question(1)), s(32)), [Action::Close]);
    assert_eq!(node.handle(Event::CloseAnswered, s(33)), [Action::Exit(Exit::Stopped)]);
}

#[test]
fn the_last_follower_that_leaves_waits_for_the_leader_and_does_not_lead_itself() {
    let mut node = following(AMONG);
    node.handle(Event::StopRequested, s(0));
    node.handle(Event::LeavingAnnounced, s(0));
    assert_eq!(node.handle(Event::ClusterSeen(ALONE), s(0)), []);
    let asked = node.handle(Event::LeaderChanged, ms(1));
    assert_eq!(asked, [Action::Ask(Question(2), Asked::Leader)]);
    let gone = node.handle(Event::ElectionAnswered(Question(2), Answer::NoLeader), ms(2));
    let expected =
        [Action::SetFollows(false), Action::Follow(None), Action::LimitShutdown, Action::Close];
    assert_eq!(gone, expected);
}

#[test]
fn a_store_that_does_not_answer_is_not_asked_again() {
    let mut node = following(AMONG);
    assert!(!node.handle(Event::Time, s(60)).contains(&Action::AskStore));
    node.handle(Event::StoreAnswered, s(60));
    node.handle(Event::StoreAnswered, s(60));
    assert!(node.handle(Event::Time, s(60) + STORE_INTERVAL).contains(&Action::AskStore));
}
