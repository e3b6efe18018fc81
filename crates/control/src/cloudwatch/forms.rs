//! Requests and replies in the three protocols of CloudWatch.
//!
//! | protocol | clients | request |
//! | --- | --- | --- |
//! | JSON 1.0 | boto3, aws-cli | `POST /`, the action in `X-Amz-Target` |
//! | Smithy RPC v2, CBOR | SDKs for Go, Rust, Java | `POST /service/NAME/operation/ACTION` |
//! | query | older SDKs | `POST /` or `GET /`, the action in `Action`; replies are XML |

use std::collections::BTreeMap;

use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::cbor;
use super::value::Value;
use crate::api::error::ApiError;
use crate::direct::Answer;

/// The name of the service in signatures.
pub const SERVICE: &str = "monitoring";
/// The name of the service in requests in JSON and CBOR.
const TARGET: &str = "GraniteServiceVersion20100801";
/// The version of the API, in requests of the query protocol.
const VERSION: &str = "2010-08-01";
const NAMESPACE: &str = "http://monitoring.amazonaws.com/doc/2010-08-01/";
/// Maximum number of parts of a parameter's name in the query protocol. The longest has nine.
const PARTS_MAX: usize = 16;

/// A protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// JSON 1.0.
    Json,
    /// Smithy RPC v2 in CBOR.
    Cbor,
    /// Form parameters and XML.
    Query,
}

/// A request as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The path.
    pub path: &'a str,
    /// The query string, still encoded.
    pub query: &'a str,
    /// The headers that are text.
    pub headers: &'a [(&'a str, &'a str)],
}

impl Arrived<'_> {
    fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// Returns the protocol of a request for CloudWatch; `None` if it is for another service.
    #[must_use]
    pub fn form(&self) -> Option<Form> {
        if self.path.starts_with("/service/") {
            return Some(Form::Cbor);
        }
        if self.header("x-amz-target").is_some() {
            return Some(Form::Json);
        }
        self.is_signed_for(SERVICE).then_some(Form::Query)
    }

    /// Returns whether the signature of a request names a service. It is not verified.
    #[must_use]
    pub fn is_signed_for(&self, service: &str) -> bool {
        let scope_end = format!("/{service}/aws4_request");
        let signed = self
            .header("authorization")
            .is_some_and(|text| text.split([',', ' ']).any(|part| part.ends_with(&scope_end)));
        let presigned = self.query.split('&').any(|pair| {
            let pair = pair.replace("%2F", "/").replace("%2f", "/");
            pair.starts_with("X-Amz-Credential=") && pair.ends_with(&scope_end)
        });
        signed || presigned
    }

    /// Returns the action and its parameters.
    ///
    /// # Errors
    /// The request does not have this form.
    pub fn read(&self, form: Form, body: &[u8]) -> Result<(String, Value), ApiError> {
        match form {
            Form::Json => {
                let target = self.header("x-amz-target").and_then(|header| header.split_once('.'));
                let action = target.filter(|(service, _)| *service == TARGET);
                let (_, action) = action.ok_or_else(|| no_operation("X-Amz-Target"))?;
                let value: serde_json::Value =
                    serde_json::from_slice(body).map_err(|error| malformed("JSON", &error))?;
                Ok((action.to_owned(), from_json(value)))
            }
            Form::Cbor => {
                let rest = self.path.strip_prefix("/service/").and_then(|it| it.split_once('/'));
                let named = rest.filter(|(service, _)| *service == TARGET);
                let action = named.and_then(|(_, rest)| rest.strip_prefix("operation/"));
                let action = action.ok_or_else(|| no_operation("the path"))?;
                let value = cbor::decode(body).map_err(|error| malformed("CBOR", &error))?;
                Ok((action.to_owned(), value))
            }
            Form::Query => self.read_query(body),
        }
    }

    fn read_query(&self, body: &[u8]) -> Result<(String, Value), ApiError> {
        let mut in_query = Params::decode(self.query.as_bytes())?;
        // These parameters belong to the signature, which is verified.
        in_query.retain(|name| !name.starts_with("X-Amz-"));
        let mut params = in_query.and(Params::decode(body)?)?;
        let action = params.take("Action").ok_or_else(ApiError::missing_action)?;
        match params.take("Version") {
            Some(version) if version == VERSION => {}
            _ => {
                let text = format!("the parameter Version must be {VERSION}");
                return Err(ApiError::new("NoSuchVersion", text));
            }
        }
        let mut tree = Node::default();
        for (name, value) in params.iter() {
            tree.insert(name, value).ok_or_else(|| {
                ApiError::new("MalformedQueryString", format!("'{name}' is no parameter"))
            })?;
        }
        Ok((action, tree.value()))
    }
}

fn malformed(what: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new("SerializationException", format!("the body is not {what}: {error}"))
}

fn no_operation(place: &str) -> ApiError {
    let text = format!("{place} names no action of {TARGET}");
    ApiError { status: 404, code: "UnknownOperationException", message: text }
}

/// Parameters of the query protocol by the parts of their names.
#[derive(Default)]
struct Node {
    text: Option<String>,
    children: BTreeMap<String, Node>,
}

impl Node {
    fn insert(&mut self, name: &str, value: &str) -> Option<()> {
        let mut node = self;
        for (at, part) in name.split('.').enumerate() {
            if at >= PARTS_MAX || part.is_empty() || node.text.is_some() {
                return None;
            }
            node = node.children.entry(part.to_owned()).or_default();
        }
        if !node.children.is_empty() {
            return None;
        }
        node.text = Some(value.to_owned());
        Some(())
    }

    /// The depth is bounded by [`PARTS_MAX`].
    fn value(self) -> Value {
        let Self { text, mut children } = self;
        if let Some(text) = text {
            return Value::Text(text);
        }
        if children.len() == 1
            && let Some(list) = children.remove("member")
        {
            let numbered =
                |(number, node): (String, Self)| Some((number.parse::<u32>().ok()?, node.value()));
            // An element without a number makes the list invalid; its reader returns an error.
            let items: Option<BTreeMap<u32, Value>> =
                list.children.into_iter().map(numbered).collect();
            return items.map_or(Value::Bool(false), |it| Value::List(it.into_values().collect()));
        }
        Value::Map(children.into_iter().map(|(name, node)| (name, node.value())).collect())
    }
}

fn from_json(value: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(value),
        Json::Number(number) => number.as_f64().map_or(Value::Null, Value::Number),
        Json::String(text) => Value::Text(text),
        Json::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        Json::Object(fields) => {
            Value::Map(fields.into_iter().map(|(name, value)| (name, from_json(value))).collect())
        }
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Number(number) | Value::Time(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(fields) | Value::Dictionary(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), to_json(value))).collect()
        }
    }
}

fn to_xml(name: &str, value: &Value) -> Element {
    match value {
        Value::Null => Element::new(name),
        Value::Bool(value) => Element::text(name, value),
        Value::Number(number) => Element::text(name, number),
        // All times of replies are whole seconds after 1970.
        Value::Time(seconds) => {
            let text = timestamp::extended(*seconds as u64 * 1_000);
            Element::text(name, text.replace(".000Z", "Z"))
        }
        Value::Text(text) => Element::text(name, text),
        Value::List(items) => Element::list(name, items.iter().map(|item| to_xml("member", item))),
        Value::Map(fields) => {
            Element::list(name, fields.iter().map(|(name, value)| to_xml(name, value)))
        }
        Value::Dictionary(fields) => {
            let entry = |(key, value): &(String, Value)| {
                Element::list("entry", [Element::text("key", key), to_xml("value", value)])
            };
            Element::list(name, fields.iter().map(entry))
        }
    }
}

impl Form {
    /// Returns the reply to an action.
    #[must_use]
    pub fn answer(self, action: &str, value: &Value, request_id: &str) -> Answer {
        let body = match self {
            Self::Json => to_json(value).to_string().into_bytes(),
            Self::Cbor => cbor::encode(value),
            Self::Query => {
                let id = Element::text("RequestId", request_id);
                let mut root = Element::new(&format!("{action}Response"));
                root.namespace = Some(NAMESPACE.into());
                root.children.push(to_xml(&format!("{action}Result"), value));
                root.children.push(Element::list("ResponseMetadata", [id]));
                root.document().into_bytes()
            }
        };
        self.reply(200, body)
    }

    /// Returns the reply to a refused request.
    #[must_use]
    pub fn refusal(self, error: &ApiError, request_id: &str) -> Answer {
        let ApiError { status, code, message } = error;
        let side = if error.is_the_servers() { "Receiver" } else { "Sender" };
        let value =
            Value::map([("__type", Value::text(kind(code))), ("message", Value::text(message))]);
        let body = match self {
            Self::Json => to_json(&value).to_string().into_bytes(),
            Self::Cbor => cbor::encode(&value),
            Self::Query => {
                let fields = [("Type", side), ("Code", code), ("Message", message)];
                let fields = fields.map(|(name, text)| Element::text(name, text));
                let mut root = Element::new("ErrorResponse");
                root.namespace = Some(NAMESPACE.into());
                root.children.push(Element::list("Error", fields));
                root.children.push(Element::text("RequestId", request_id));
                root.document().into_bytes()
            }
        };
        let mut answer = self.reply(*status, body);
        // Without this header SDKs would name errors by their types, and not by their codes.
        answer.headers.push(("x-amzn-query-error", format!("{code};{side}")));
        answer
    }

    fn reply(self, status: u16, body: Vec<u8>) -> Answer {
        let content_type = match self {
            Self::Json => "application/x-amz-json-1.0",
            Self::Cbor => "application/cbor",
            Self::Query => "text/xml",
        };
        let headers = match self {
            Self::Cbor => vec![("smithy-protocol", "rpc-v2-cbor".to_owned())],
            _ => Vec::new(),
        };
        Answer { status, headers, content_type, body }
    }
}

/// Returns the type of an error in JSON and CBOR, by its code in the query protocol.
fn kind(code: &str) -> String {
    let name = match code {
        "InvalidParameterValue" => "InvalidParameterValueException",
        "InvalidParameterCombination" => "InvalidParameterCombinationException",
        "MissingParameter" => "MissingRequiredParameterException",
        "InternalServiceError" => "InternalServiceFault",
        "ValidationError" => "ValidationException",
        "Throttling" => "ThrottlingException",
        other => other,
    };
    format!("com.amazonaws.cloudwatch#{name}")
}

/// Converts an error of the EC2 API that is not an action's to CloudWatch's name.
#[must_use]
pub fn translated(error: ApiError) -> ApiError {
    match error.code {
        "AuthFailure" => ApiError { status: 403, code: "InvalidClientTokenId", ..error },
        // A client error, which SDKs repeat by themselves.
        "RequestLimitExceeded" => ApiError { status: 400, code: "Throttling", ..error },
        "InternalError" => ApiError { code: "InternalServiceError", ..error },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived<'a>(
        path: &'a str,
        query: &'a str,
        headers: &'a [(&'a str, &'a str)],
    ) -> Arrived<'a> {
        Arrived { path, query, headers }
    }

    #[test]
    fn a_signature_names_one_service_in_a_header_or_in_a_presigned_url() {
        let header = [("authorization", "A Credential=K/20261003/r/sts/aws4_request, S=1")];
        assert!(arrived("/", "", &header).is_signed_for("sts"));
        assert!(!arrived("/", "", &header).is_signed_for("ec2"));
        for query in ["X-Amz-Credential=K%2F1%2Fr%2Fsts%2Faws4_request", "a=/sts/aws4_request"] {
            let is_presigned = query.starts_with("X-Amz");
            assert_eq!(arrived("/", query, &[]).is_signed_for("sts"), is_presigned, "{query}");
        }
    }

    #[test]
    fn a_request_is_for_cloudwatch_or_for_another_service() {
        let scope = |service: &str| {
            format!("AWS4-HMAC-SHA256 Credential=K/20261003/local-1/{service}/aws4_request, Sig=1")
        };
        let monitoring = scope("monitoring");
        let ec2 = scope("ec2");
        let target = [("X-Amz-Target", "GraniteServiceVersion20100801.ListMetrics")];
        for (path, query, headers, expected) in [
            ("/", "", &target[..], Some(Form::Json)),
            ("/service/x", "", &[], Some(Form::Cbor)),
            ("/", "", &[("Authorization", monitoring.as_str())], Some(Form::Query)),
            ("/", "", &[("Authorization", ec2.as_str())], None),
            ("/", "X-Amz-Credential=K%2F1%2Fl%2Fmonitoring%2Faws4_request", &[], Some(Form::Query)),
            ("/", "X-Amz-Credential=K%2F1%2Fl%2Fec2%2Faws4_request", &[], None),
            ("/", "", &[], None),
        ] {
            assert_eq!(arrived(path, query, headers).form(), expected, "{path} {query}");
        }
    }

    #[test]
    fn all_forms_say_the_same() {
        let expected = Value::map([
            ("Dimensions", Value::List(vec![Value::map([("Name", Value::text("VolumeId"))])])),
            ("Namespace", Value::text("AWS/EBS")),
        ]);
        let target = [("x-amz-target", "GraniteServiceVersion20100801.ListMetrics")];
        let json = br#"{"Dimensions":[{"Name":"VolumeId"}],"Namespace":"AWS/EBS"}"#;
        let read = arrived("/", "", &target).read(Form::Json, json).unwrap();
        assert_eq!(read, ("ListMetrics".to_owned(), expected.clone()));
        let path = "/service/GraniteServiceVersion20100801/operation/ListMetrics";
        let body = cbor::encode(&expected);
        let read = arrived(path, "", &[]).read(Form::Cbor, &body).unwrap();
        assert_eq!(read, ("ListMetrics".to_owned(), expected.clone()));
        let query = "Action=ListMetrics&Version=2010-08-01&X-Amz-Date=x";
        let body = b"Dimensions.member.1.Name=VolumeId&Namespace=AWS%2FEBS";
        let read = arrived("/", query, &[]).read(Form::Query, body).unwrap();
        assert_eq!(read, ("ListMetrics".to_owned(), expected));
    }

    #[test]
    fn malformed_request_of_each_form_is_refused() {
        let target = [("x-amz-target", "GraniteServiceVersion20100801.ListMetrics")];
        let other = [("x-amz-target", "DynamoDB_20120810.ListTables")];
        let path = "/service/GraniteServiceVersion20100801/operation/ListMetrics";
        let long = format!("Action=L&Version=2010-08-01&{}=1", ["A"; 17].join("."));
        for (form, path, query, headers, body, code) in [
            (Form::Json, "/", "", &target[..], &b"{"[..], "SerializationException"),
            (Form::Json, "/", "", &other, b"{}", "UnknownOperationException"),
            (Form::Cbor, path, "", &[], b"", "SerializationException"),
            (Form::Cbor, "/service/Other/operation/X", "", &[], b"", "UnknownOperationException"),
            (Form::Query, "/", "Action=ListMetrics", &[], b"", "NoSuchVersion"),
            (Form::Query, "/", "Version=2010-08-01", &[], b"", "MissingAction"),
            (Form::Query, "/", long.as_str(), &[], b"", "MalformedQueryString"),
            (
                Form::Query,
                "/",
                "Action=L&Version=2010-08-01",
                &[],
                b"A=1&A.B=2",
                "MalformedQueryString",
            ),
            (
                Form::Query,
                "/",
                "Action=L&Version=2010-08-01",
                &[],
                b"A.B=1&A=2",
                "MalformedQueryString",
            ),
            (
                Form::Query,
                "/",
                "Action=L&Version=2010-08-01",
                &[],
                b"A..B=1",
                "MalformedQueryString",
            ),
        ] {
            let error = arrived(path, query, headers).read(form, body).unwrap_err();
            assert_eq!(error.code, code, "{form:?} {query}");
        }
    }

    #[test]
    fn replies_and_errors_have_the_form_of_their_protocol() {
        let points = Value::List(vec![Value::map([
            ("Timestamp", Value::time(1_440_938_160)),
            ("Sum", Value::Number(1.5)),
        ])]);
        let reply = Value::map([("Label", Value::text("a<b")), ("Datapoints", points)]);
        let text = |answer: Answer| String::from_utf8(answer.body).unwrap();
        assert_eq!(
            text(Form::Json.answer("GetMetricStatistics", &reply, "id")),
            r#"{"Datapoints":[{"Sum":1.5,"Timestamp":1440938160.0}],"Label":"a<b"}"#
        );
        assert_eq!(
            text(Form::Query.answer("GetMetricStatistics", &reply, "id")).lines().nth(1).unwrap(),
            "<GetMetricStatisticsResponse xmlns=\"http://monitoring.amazonaws.com/doc/2010-08-01/\">\
             <GetMetricStatisticsResult><Label>a&lt;b</Label><Datapoints><member>\
             <Timestamp>2015-08-30T12:36:00Z</Timestamp><Sum>1.5</Sum></member></Datapoints>\
             </GetMetricStatisticsResult><ResponseMetadata><RequestId>id</RequestId>\
             </ResponseMetadata></GetMetricStatisticsResponse>"
        );
        let answer = Form::Cbor.answer("GetMetricStatistics", &reply, "id");
        assert_eq!(cbor::decode(&answer.body), Ok(reply));
        assert_eq!(answer.headers, [("smithy-protocol", "rpc-v2-cbor".to_owned())]);
        let error = ApiError::new("MissingParameter", "x");
        let refused = Form::Json.refusal(&error, "id");
        assert_eq!(refused.headers, [("x-amzn-query-error", "MissingParameter;Sender".to_owned())]);
        let kind = "com.amazonaws.cloudwatch#MissingRequiredParameterException";
        assert_eq!(text(refused), format!(r#"{{"__type":"{kind}","message":"x"}}"#));
        let refused = text(Form::Query.refusal(&error, "id"));
        assert!(refused.contains("<Error><Type>Sender</Type><Code>MissingParameter</Code>"));
    }
}
