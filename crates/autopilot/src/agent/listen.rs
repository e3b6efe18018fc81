//! The metrics of the agent over HTTP, for Prometheus on this machine.

use evenkeel_telemetry::metrics::Format;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest wait for a part of a request, or until a part of the answer is taken.
const PART_MAX: Duration = Duration::from_secs(5);
/// The most bytes of a request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The most reads of a request.
const READS_MAX: usize = 64;

/// The text of the metrics, in OpenMetrics. A clone shares it.
#[derive(Clone, Default, Debug)]
pub struct Page(Arc<Mutex<String>>);

impl Page {
    /// Replaces the text.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts to answer at an address until the process ends. Returns the address with its port.
    ///
    /// # Errors
    /// If the address is in use.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        let page = self.clone();
        std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            // One client at a time: a scrape takes a moment, and a slow client is cut off.
            for stream in listener.incoming().flatten() {
                let _ = page.answer(stream);
            }
        })?;
        Ok(bound)
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PART_MAX))?;
        stream.set_write_timeout(Some(PART_MAX))?;
        let head = head(&mut stream)?;
        stream.write_all(self.reply(&head).as_bytes())
    }

    fn reply(&self, head: &str) -> String {
        let mut lines = head.lines();
        let path = lines.next().unwrap_or_default().split(' ').nth(1).unwrap_or_default();
        if !head.starts_with("GET ") || path.split('?').next() != Some("/metrics") {
            return response("404 Not Found", "text/plain", "the metrics are at /metrics\n");
        }
        let accepts = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("accept").then_some(value)
        });
        let format = Format::asked_for(accepts);
        response("200 OK", format.content_type(), &format.of(self.text()))
    }
}

fn response(status: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: \
         close\r\n\r\n{body}",
        body.len()
    )
}

/// Reads the lines of a request.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 1_024];
    for _ in 0..READS_MAX {
        let count = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..count]);
        if count == 0 || bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        if bytes.len() > REQUEST_BYTES_MAX {
            break;
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_served_in_both_formats_and_other_requests_are_refused() {
        let page = Page::default();
        page.set("# TYPE a gauge\n# HELP a Help.\na 1\n# EOF\n".to_owned());
        let address = page.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let plain = ask("GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(plain.starts_with("HTTP/1.1 200 OK\r\n"), "{plain}");
        assert!(plain.contains("text/plain") && plain.ends_with("\na 1\n"), "{plain}");
        let open = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
        assert!(ask(open).ends_with("\na 1\n# EOF\n"));
        for request in ["GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n"] {
            assert!(ask(request).starts_with("HTTP/1.1 404 "), "{request}");
        }
        let endless = "x".repeat(REQUEST_BYTES_MAX + 2_048);
        let mut stream = TcpStream::connect(address).unwrap();
        // The connection may be closed before all is sent.
        let _ = stream.write_all(endless.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
}
