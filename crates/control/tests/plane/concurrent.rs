//! A thousand clients at once: every acknowledged modification is visible from then on, a volume's
//! size never decreases, no list has a volume twice or lacks one that existed all the time, and a
//! request without a reply was not executed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::support::{Client, Server, create, text, unix_s};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::xml::Element;

const VOLUMES: usize = 40;
const MODIFIERS: usize = 500;
const READERS: usize = 460;
const CHURNERS: usize = 40;
/// Size of a page: all volumes take several pages.
const PAGE: &str = "15";
/// Maximum number of attempts of a client that is refused or gets no reply: there are more clients
/// than connections.
const TRIES_MAX: u32 = 2_000;

struct Crowd {
    client: Client,
    calls: AtomicU64,
    /// Stable volumes, and the size that was acknowledged last.
    acknowledged: BTreeMap<String, AtomicU64>,
    /// Volumes whose creation, but not deletion, was acknowledged.
    left: Mutex<BTreeSet<String>>,
}

impl Crowd {
    /// Sends a request with new signatures until there is a reply. Returns the reply.
    fn call(&self, action: &str, params: &[(&str, &str)]) -> Result<Element, String> {
        let named = [("Action", action), ("Version", "2016-11-15")];
        let body = query::encode(named.iter().chain(params).copied());
        for _ in 0..TRIES_MAX {
            // No two requests have the same signature.
            let id = self.calls.fetch_add(1, Ordering::Relaxed).to_string();
            let headers = self.client.signed(&body, unix_s(), &[("amz-sdk-invocation-id", &id)]);
            match self.attempt(&headers, &body) {
                Some((200, text)) => return Ok(Element::parse(&text).unwrap()),
                Some((503, text)) => assert!(text.contains("RequestLimitExceeded"), "{text}"),
                Some((_, text)) => {
                    let root = Element::parse(&text).unwrap();
                    let code = root.items("Errors")[0].child_text("Code");
                    return Err(code.unwrap().to_owned());
                }
                None => {}
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        panic!("{action}: no reply in {TRIES_MAX} tries");
    }

    /// Returns status and body; `None` if the connection was evicted before the request was read.
    fn attempt(&self, headers: &[(String, String)], body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.client.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut request = "POST / HTTP/1.1\r\nconnection: close\r\n".to_owned();
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// Makes a volume larger; every modification requests a size of its own.
    fn modify(&self, id: &str, size: u64) {
        let text_of = size.to_string();
        match self.call("ModifyVolume", &[("VolumeId", id), ("Size", &text_of)]) {
            Ok(_) => _ = self.acknowledged[id].fetch_max(size, Ordering::SeqCst),
            // Another modification came first, and the volume is larger already.
            Err(code) => assert_eq!(code, "InvalidParameterValue", "{id} to {size} GiB"),
        }
        let least = self.acknowledged[id].load(Ordering::SeqCst);
        let seen = self.call("DescribeVolumes", &[("VolumeId.1", id)]).unwrap();
        let seen = size_of(&seen.items("volumeSet")[0]);
        assert!(seen >= least, "{id}: {seen} GiB, and {least} were acknowledged");
    }

    /// Reads all pages.
    fn read(&self) {
        let before: BTreeMap<&String, u64> =
            self.acknowledged.iter().map(|(id, it)| (id, it.load(Ordering::SeqCst))).collect();
        let there = self.left.lock().unwrap().clone();
        let mut seen = BTreeMap::new();
        let mut token = None::<String>;
        loop {
            let mut params = vec![("MaxResults", PAGE)];
            params.extend(token.as_deref().map(|token| ("NextToken", token)));
            let page = self.call("DescribeVolumes", &params).unwrap();
            for item in page.items("volumeSet") {
                let id = text(item, "volumeId").to_owned();
                assert!(seen.insert(id, size_of(item)).is_none(), "twice: {item:?}");
            }
            token = page.child_text("nextToken").map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        for (id, least) in before {
            let found = seen.get(id).unwrap_or_else(|| panic!("{id} is missing"));
            assert!(*found >= least, "{id}: {found} GiB, and {least} were acknowledged before");
        }
        let after = self.left.lock().unwrap();
        for id in there.intersection(&after) {
            assert!(seen.contains_key(id), "{id} is missing, and was there all the time");
        }
    }

    /// Creates a volume, and deletes it unless it stays.
    fn churn(&self, stays: bool) {
        let params = [("AvailabilityZone", "local-1a"), ("Size", "1")];
        let made = self.call("CreateVolume", &params).unwrap();
        let id = text(&made, "volumeId").to_owned();
        self.left.lock().unwrap().insert(id.clone());
        if !stays {
            self.left.lock().unwrap().remove(&id);
            self.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
        }
    }
}

fn size_of(volume: &Element) -> u64 {
    text(volume, "size").parse().unwrap()
}

#[test]
fn a_thousand_clients_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let ids: Vec<String> = (0..VOLUMES).map(|_| create(&client, &[])).collect();
    let acknowledged = ids.iter().map(|id| (id.clone(), AtomicU64::new(10))).collect();
    let calls = AtomicU64::new(1 << 32);
    let left = Mutex::default();
    let crowd = Arc::new(Crowd { client, calls, acknowledged, left });
    let all = MODIFIERS + READERS + CHURNERS;
    let start = Arc::new(Barrier::new(all));
    let spawn = |number: usize| {
        let crowd = Arc::clone(&crowd);
        let start = Arc::clone(&start);
        let ids = ids.clone();
        let run = move || {
            start.wait();
            match number {
                n if n < MODIFIERS => crowd.modify(&ids[n % VOLUMES], 11 + (n / VOLUMES) as u64),
                n if n < MODIFIERS + READERS => crowd.read(),
                n => crowd.churn(n % 2 == 0),
            }
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap()
    };
    let threads: Vec<_> = (0..all).map(spawn).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    check_end(&crowd, server);
}

/// Checks that the end state is exactly the acknowledged one.
fn check_end(crowd: &Crowd, server: Server) {
    let sizes = |client: &Client| -> BTreeMap<String, u64> {
        let reply = client.call("DescribeVolumes", &[]).unwrap();
        let all = reply.items("volumeSet").iter();
        all.map(|item| (text(item, "volumeId").to_owned(), size_of(item))).collect()
    };
    let found = sizes(&server.client());
    let mut expected: BTreeMap<String, u64> =
        crowd.acknowledged.iter().map(|(id, it)| (id.clone(), it.load(Ordering::SeqCst))).collect();
    // The largest size of each volume is never refused.
    assert!(expected.values().all(|size| *size >= 10 + (MODIFIERS / VOLUMES) as u64));
    expected.extend(crowd.left.lock().unwrap().iter().map(|id| (id.clone(), 1)));
    assert_eq!(found, expected);
    let held = server.agent.with(|state| state.volumes.len());
    assert_eq!(held, expected.len(), "bytes of nobody");
}
