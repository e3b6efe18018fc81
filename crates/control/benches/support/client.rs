//! A client of the API that keeps its connection, and measures the time of answers.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods)] // a bench measures

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_control::credentials::Credentials;
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::sigv4::{self, Scope};

fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A client that keeps its connection.
pub struct Client {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    credentials: Credentials,
}

impl Client {
    /// Connects to the API at an address.
    pub fn new(address: SocketAddr, credentials: &Credentials) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), address, credentials: credentials.clone() }
    }

    /// Returns the answer, and the time that it took.
    pub fn call(&mut self, action: &str, params: &[(&str, &str)]) -> (String, Duration) {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let named = [("Action", action), ("Version", "2016-11-15")];
        let body = query::encode(named.iter().chain(params).copied());
        // As SDKs do, so that no two calls within a second have the same signature.
        let call = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
        let host = self.address.to_string();
        let headers = [
            ("host", host.as_str()),
            ("content-type", "application/x-www-form-urlencoded"),
            ("amz-sdk-invocation-id", &call),
        ];
        let body_bytes = body.as_bytes();
        let request = sigv4::Request {
            method: "POST",
            path: "/",
            query: "",
            headers: &headers,
            body: body_bytes,
        };
        let keys = sigv4::Credentials {
            access_key_id: &self.credentials.access_key_id,
            secret_access_key: &self.credentials.secret_access_key,
        };
        let scope = Scope { region: "local-1", service: "ec2" };
        let signed = sigv4::sign(&request, keys, scope, unix_s());
        let mut text = "POST / HTTP/1.1\r\n".to_owned();
        let signed = signed.iter().map(|(name, value)| (name.as_ref(), value.as_ref()));
        for (name, value) in headers.into_iter().chain(signed) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        let began = Instant::now();
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
        let answer = self.answer();
        (answer, began.elapsed())
    }

    fn answer(&mut self) -> String {
        let mut status = String::new();
        let mut length = 0;
        self.stream.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        assert!(status.contains(" 200 "), "{status}{body}");
        body
    }
}

/// Returns the text of the first element of this name.
pub fn text<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    rest.split_once('<').map(|(text, _)| text)
}
