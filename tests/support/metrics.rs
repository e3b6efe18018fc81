//! The metrics of a server at `/metrics`.

use super::PATIENCE;
use super::server::Server;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The samples of one scrape, by name and labels as written.
#[derive(Debug)]
pub struct Metrics {
    pub samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Reads the metrics, without a signature.
    #[track_caller]
    pub fn of(server: &Server) -> Self {
        let api = server.api;
        let mut stream = TcpStream::connect_timeout(&api, PATIENCE).expect("the API's port");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let request = format!(
            "GET /metrics HTTP/1.1\r\nhost: {api}\r\naccept: application/openmetrics-text\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(body.ends_with("# EOF\n"), "{body}");
        let samples = body.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        Self { samples: samples.collect() }
    }

    /// Returns the one sample of this name, without its prefix, that has no labels.
    #[track_caller]
    pub fn single(&self, name: &str) -> f64 {
        let found = self.samples.get(&format!("evenkeel_{name}"));
        *found.unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// Returns the sum of the samples of this name, without its prefix, whose labels have all these
    /// values.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let begin = format!("evenkeel_{name}{{");
        let labels: Vec<String> = labels.iter().map(|value| format!("=\"{value}\"")).collect();
        let matching: Vec<f64> = self
            .samples
            .iter()
            .filter(|(series, _)| series.starts_with(&begin))
            .filter(|(series, _)| labels.iter().all(|label| series.contains(label)))
            .map(|(_, value)| *value)
            .collect();
        assert!(!matching.is_empty(), "no {name} of {labels:?} in {self:#?}");
        matching.iter().sum()
    }
}
