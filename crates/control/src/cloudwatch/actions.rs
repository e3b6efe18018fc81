//! ListMetrics, GetMetricData, GetMetricStatistics and DescribeAlarms. Error codes and texts are
//! CloudWatch's where they are known.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::cloudwatch::metrics::{self, DIMENSION, Metric, NAMESPACE};
use evenkeel_telemetry::cloudwatch::query::{Bucket, Statistic, buckets, is_period};
use evenkeel_telemetry::cloudwatch::record::Record;
use evenkeel_telemetry::cloudwatch::store::Listed;
use evenkeel_telemetry::cloudwatch::{CloudWatch, HOUR_S, MINUTE_S};
use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::{signed_token, sigv4};

use super::forms::SERVICE;
use super::input::Input;
use super::plan::{Plan, Query, Source};
use super::value::Value;
use crate::api::error::ApiError;
use crate::api::{Api, Unauthorized};
use crate::rights::Caller;
use crate::trail::Asked;

/// The names of the actions.
pub const ACTIONS: [&str; 4] =
    ["DescribeAlarms", "GetMetricData", "GetMetricStatistics", "ListMetrics"];
/// Maximum number of metrics in a page of ListMetrics.
const LISTED_MAX: usize = 500;
/// Maximum number of queries of a GetMetricData.
const QUERIES_MAX: usize = 500;
/// Maximum number of data points in a page of GetMetricData.
const DATA_POINTS_MAX: usize = 100_800;
/// Maximum number of data points of a GetMetricStatistics.
const STATISTICS_POINTS_MAX: u64 = 1_440;
/// Maximum number of dimensions of a metric, and of a filter.
const DIMENSIONS_MAX: usize = 30;
const FILTERS_MAX: usize = 10;
/// Maximum of bytes of a name, of a dimension's value, of an expression or label, of a token.
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 1_024;
const TEXT_MAX: usize = 2_048;

/// The supported statistics and periods, for error texts.
const STATISTICS: &str = "SampleCount, Average, Sum, Minimum, Maximum";
const PERCENTILES: &str = "percentiles from p0 to p100, such as p99.9";
const PERIODS: &str = "must be 1, 5, 10, 20, 30 or a multiple of 60";

/// Maximum number of alarms in a page, and of names in a request.
const ALARMS_MAX: usize = 100;
const ALARM_STATES: [&str; 3] = ["OK", "ALARM", "INSUFFICIENT_DATA"];

/// Purposes of tokens.
const LIST: &str = "evenkeel-cloudwatch-list";
const DATA: &str = "evenkeel-cloudwatch-data";

const UNITS: [&str; 27] = [
    "Seconds",
    "Microseconds",
    "Milliseconds",
    "Bytes",
    "Kilobytes",
    "Megabytes",
    "Gigabytes",
    "Terabytes",
    "Bits",
    "Kilobits",
    "Megabits",
    "Gigabits",
    "Terabits",
    "Percent",
    "Count",
    "Bytes/Second",
    "Kilobytes/Second",
    "Megabytes/Second",
    "Gigabytes/Second",
    "Terabytes/Second",
    "Bits/Second",
    "Kilobits/Second",
    "Megabits/Second",
    "Gigabits/Second",
    "Terabits/Second",
    "Count/Second",
    "None",
];

impl Api {
    /// Executes an action of CloudWatch. All of them only read.
    ///
    /// # Errors
    /// The errors of the action.
    pub fn run_cloudwatch(
        &self,
        caller: &Caller,
        action: &str,
        parameters: Value,
        request_id: &str,
    ) -> Result<Value, ApiError> {
        let params = &Params::default();
        let service = SERVICE;
        let is_read_only = true;
        let asked = Asked { caller, service, action, is_read_only, params, request_id };
        self.recorded(&asked, || {
            if ACTIONS.contains(&action) {
                self.authorize(&asked).map_err(Unauthorized::denied)?;
            }
            self.execute_cloudwatch(action, parameters)
        })
    }

    fn execute_cloudwatch(&self, action: &str, parameters: Value) -> Result<Value, ApiError> {
        let Some(cloudwatch) = &self.cloudwatch else {
            return Err(ApiError::internal("this server keeps no metrics"));
        };
        let secret = &self.credentials.secret_access_key;
        let account = &self.plane().settings.account;
        let now = self.plane().clock().unix_ms();
        let call = Call { cloudwatch, secret, account, now };
        match action {
            "ListMetrics" => call.list_metrics(Input::new(parameters, "InvalidParameterValue")?),
            "GetMetricData" => {
                let request = sigv4::sha256_hex(fingerprint(&parameters).as_bytes());
                call.metric_data(Input::new(parameters, "ValidationError")?, &request)
            }
            "GetMetricStatistics" => {
                call.metric_statistics(Input::new(parameters, "InvalidParameterValue")?)
            }
            "DescribeAlarms" => alarms(Input::new(parameters, "InvalidParameterValue")?),
            other => {
                let known = ACTIONS.join(", ");
                let text = format!("The action {other} is not supported; these are: {known}.");
                Err(ApiError::new("InvalidAction", text))
            }
        }
    }
}

/// DescribeAlarms: returns no alarms, as tools that look for alarms of a volume expect.
fn alarms(mut input: Input) -> Result<Value, ApiError> {
    for name in ["AlarmNames", "AlarmTypes"] {
        input.list(name, ALARMS_MAX)?;
    }
    for name in ["AlarmNamePrefix", "ChildrenOfAlarmName", "ParentsOfAlarmName", "ActionPrefix"] {
        input.text(name, VALUE_MAX)?;
    }
    let state = input.text("StateValue", NAME_MAX)?;
    if state.is_some_and(|state| !ALARM_STATES.contains(&state.as_str())) {
        return Err(input.wrong("StateValue", &format!("must be {}", ALARM_STATES.join(" or "))));
    }
    let records = input.number("MaxRecords")?;
    if records.is_some_and(|records| !(1..=ALARMS_MAX as u64).contains(&records)) {
        return Err(input.wrong("MaxRecords", &format!("must be 1 to {ALARMS_MAX}")));
    }
    if input.text("NextToken", TEXT_MAX)?.is_some() {
        let text = "The parameter NextToken is not of this list; begin the list anew.";
        return Err(ApiError::new("InvalidNextToken", text));
    }
    input.done()?;
    let none = || Value::List(Vec::new());
    Ok(Value::map([("CompositeAlarms", none()), ("MetricAlarms", none())]))
}

/// Returns the fingerprint of everything that defines the result of a request; a token is one of
/// its pages.
fn fingerprint(parameters: &Value) -> String {
    let Value::Map(fields) = parameters else { return String::new() };
    let mut fields: Vec<_> = fields.iter().filter(|(name, _)| name != "NextToken").collect();
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    format!("{fields:?}")
}

/// An action in execution.
struct Call<'a> {
    cloudwatch: &'a CloudWatch,
    secret: &'a str,
    /// The account that owns everything.
    account: &'a str,
    now: UnixMs,
}

/// A metric of a volume; `None` if no metric has that name, these dimensions and that unit. That is
/// no error.
type Series = Option<(VolumeId, &'static Metric)>;

/// Records by the second at which they begin.
type Records = Vec<(u64, Record)>;

/// The span of a request, in seconds of Unix time.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
}

/// Place at which the next page of a GetMetricData begins: the result, and the period before.
#[derive(Clone, Copy, Default)]
struct Place {
    result: usize,
    after: Option<u64>,
}

impl Call<'_> {
    fn list_metrics(&self, mut input: Input) -> Result<Value, ApiError> {
        let namespace = input.text("Namespace", NAME_MAX)?;
        let name = input.text("MetricName", NAME_MAX)?;
        let mut filters = Vec::new();
        for mut filter in input.structures("Dimensions", FILTERS_MAX)? {
            filters.push((filter.required("Name", NAME_MAX)?, filter.text("Value", VALUE_MAX)?));
            filter.done()?;
        }
        let active = input.text("RecentlyActive", NAME_MAX)?;
        if active.as_ref().is_some_and(|active| active != "PT3H") {
            return Err(input.wrong("RecentlyActive", "must be PT3H"));
        }
        let with_owners = input.boolean("IncludeLinkedAccounts")?.unwrap_or(false);
        let owner = input.text("OwningAccount", NAME_MAX)?;
        let token = input.text("NextToken", TEXT_MAX)?;
        input.done()?;
        let after = token.map(|token| self.list_place(&token)).transpose()?;
        let is_none = namespace.is_some_and(|namespace| namespace != NAMESPACE)
            || owner.is_some_and(|owner| owner != self.account);
        // An hour that began three hours ago may have ended later than that.
        let oldest = active.map_or(0, |_| (self.now.0 / 1_000 / HOUR_S).saturating_sub(3));
        let fits = |id: VolumeId| {
            let id = id.to_string();
            filters.iter().all(|(name, value)| {
                name == DIMENSION && value.as_ref().is_none_or(|value| *value == id)
            })
        };
        let volumes = self.cloudwatch.volumes().into_iter().filter(|(id, listed)| {
            !is_none
                && listed.hour >= oldest
                && after.is_none_or(|(last, _)| *id >= last)
                && fits(*id)
        });
        let of_volume = |(id, listed): (VolumeId, Listed)| {
            let has = (0..).zip(&metrics::ALL).filter(move |(at, _)| listed.metrics & 1 << at != 0);
            has.map(move |(at, metric)| ((id, at), metric))
        };
        let wanted = |metric: &Metric| name.as_ref().is_none_or(|name| metric.name == name);
        let mut found = volumes
            .flat_map(of_volume)
            .filter(|(place, metric)| wanted(metric) && after.is_none_or(|after| *place > after));
        let page: Vec<((VolumeId, u8), &Metric)> = found.by_ref().take(LISTED_MAX).collect();
        let more = page.last().filter(|_| found.next().is_some());
        let next = more.map(|(place, _)| self.list_token(*place));
        let owners = page.iter().map(|_| Value::text(self.account)).collect();
        let shown = |((id, _), metric): &((VolumeId, u8), &Metric)| described(*id, metric);
        let reply = Value::map([("Metrics", Value::List(page.iter().map(shown).collect()))]);
        let reply = reply.with_some("NextToken", next.map(Value::Text));
        Ok(reply.with_some("OwningAccounts", with_owners.then_some(Value::List(owners))))
    }

    fn list_token(&self, (id, metric): (VolumeId, u8)) -> String {
        let mut content = id.bits().to_le_bytes().to_vec();
        content.push(metric);
        signed_token::seal(self.secret, LIST, &content)
    }

    fn list_place(&self, token: &str) -> Result<(VolumeId, u8), ApiError> {
        let place = signed_token::open(self.secret, LIST, token).and_then(|content| {
            let (bits, rest) = content.split_first_chunk()?;
            Some((VolumeId::from_bits(u128::from_le_bytes(*bits)), *rest.first()?))
        });
        place.ok_or_else(|| {
            let text = "The parameter NextToken is not of this list; begin the list anew.";
            ApiError::value(text)
        })
    }

    fn metric_statistics(&self, mut input: Input) -> Result<Value, ApiError> {
        let (series, name) = series(&mut input)?;
        let period = period(&mut input)?;
        let span = span(&mut input)?;
        let statistics = statistics(&mut input, "Statistics", 5)?;
        let percentiles = statistics_extended(&mut input, statistics.is_empty())?;
        input.done()?;
        let wanted = (span.end - span.start).div_ceil(period);
        if wanted > STATISTICS_POINTS_MAX {
            let text = format!(
                "You have requested up to {wanted} datapoints, which exceeds the limit of \
                 {STATISTICS_POINTS_MAX}. You may reduce the datapoints requested by increasing \
                 Period, or decreasing the time range."
            );
            return Err(ApiError::new("InvalidParameterCombination", text));
        }
        // Periods begin at the requested start, in whole minutes.
        let start = span.start - span.start % period.min(MINUTE_S);
        let points = series.map_or_else(Vec::new, |(id, metric)| {
            let records = self.records(id, Span { start, ..span }, period);
            buckets(values(&records, metric), start, period)
        });
        let unit = series.map_or("None", |(_, metric)| metric.unit);
        let point = |bucket: &Bucket| {
            let time = ("Timestamp".to_owned(), Value::time(bucket.start));
            let value = |(name, statistic): &(String, Statistic)| {
                (name.clone(), Value::Number(bucket.value(*statistic)))
            };
            let values = statistics.iter().map(value);
            let unit = ("Unit".to_owned(), Value::text(unit));
            let point = Value::Map([time].into_iter().chain(values).chain([unit]).collect());
            let extended = Value::Dictionary(percentiles.iter().map(value).collect());
            point.with_some("ExtendedStatistics", (!percentiles.is_empty()).then_some(extended))
        };
        Ok(Value::map([
            ("Label", Value::text(name)),
            ("Datapoints", Value::List(points.iter().map(point).collect())),
        ]))
    }

    fn metric_data(&self, mut input: Input, request: &str) -> Result<Value, ApiError> {
        let span = span(&mut input)?;
        let descending = match input.text("ScanBy", NAME_MAX)?.as_deref() {
            None | Some("TimestampDescending") => true,
            Some("TimestampAscending") => false,
            Some(_) => {
                let legal = "must be TimestampDescending or TimestampAscending";
                return Err(input.wrong("ScanBy", legal));
            }
        };
        let max = match input.number("MaxDatapoints")? {
            None => DATA_POINTS_MAX,
            Some(max @ 1..) if max <= DATA_POINTS_MAX as u64 => max as usize,
            Some(_) => {
                let legal = format!("must be between 1 and {DATA_POINTS_MAX}");
                return Err(input.wrong("MaxDatapoints", &legal));
            }
        };
        if let Some(mut options) = input.structure("LabelOptions")? {
            if options.text("Timezone", 5)?.is_some_and(|zone| !is_zone(&zone)) {
                return Err(options.wrong("Timezone", "must be such as +0130"));
            }
            options.done()?;
        }
        let token = input.text("NextToken", TEXT_MAX)?;
        let queries = queries(&mut input, self.account)?;
        input.done()?;
        let plan = Plan::new(queries)?;
        let place = token.map(|token| self.data_place(&token, request)).transpose()?;
        let place = place.unwrap_or_default();
        let (results, next) = self.results(&plan, span, descending, max, place)?;
        let reply = Value::map([
            ("MetricDataResults", Value::List(results)),
            ("Messages", Value::List(Vec::new())),
        ]);
        let next = next.map(|place| Value::Text(self.data_token(place, request)));
        Ok(reply.with_some("NextToken", next))
    }

    /// Returns one page of results: those from this place on, with a bounded number of data points,
    /// and the place at which the next page begins.
    fn results(
        &self,
        plan: &Plan<Series>,
        span: Span,
        descending: bool,
        max: usize,
        mut place: Place,
    ) -> Result<(Vec<Value>, Option<Place>), ApiError> {
        let mut reader = Reader { call: self, span, last: None };
        // Periods that have not begun yet have no values to fill.
        let until = (span.start, span.end.min(self.now.0 / 1_000));
        let computed = plan.evaluate(until, |series, statistic, period| {
            reader.points(*series, statistic, period)
        })?;
        let mut results = Vec::new();
        let mut left = max;
        while let Some((at, member)) = plan.results.get(place.result) {
            if left == 0 {
                return Ok((results, Some(place)));
            }
            let query = &plan.queries[*at];
            let mut label = query.label.clone();
            let mut points = match &query.source {
                Source::Metric(series, statistic, period) => {
                    reader.points(*series, *statistic, *period)
                }
                Source::Expression(..) => {
                    let all = computed.get(at).map_or(&[][..], Vec::as_slice);
                    if let ([_, _, ..], Some(of)) = (all, all.get(*member)) {
                        label = format!("{label} {}", of.label);
                    }
                    all.get(*member).map_or_else(Vec::new, |series| series.points.clone())
                }
            };
            if descending {
                points.reverse();
            }
            points.retain(|(start, _)| match place.after {
                None => true,
                Some(after) if descending => *start < after,
                Some(after) => *start > after,
            });
            let is_complete = points.len() <= left;
            points.truncate(left);
            left -= points.len();
            results.push(result(&query.id, label.trim_end(), &points, is_complete));
            match points.last().filter(|_| !is_complete) {
                Some((start, _)) => place.after = Some(*start),
                None => place = Place { result: place.result + 1, after: None },
            }
        }
        Ok((results, None))
    }

    fn data_token(&self, place: Place, request: &str) -> String {
        let mut content = (place.result as u64).to_le_bytes().to_vec();
        // No period begins at the last possible second, so it stands for none.
        content.extend(place.after.unwrap_or(u64::MAX).to_le_bytes());
        content.extend(request.bytes());
        signed_token::seal(self.secret, DATA, &content)
    }

    fn data_place(&self, token: &str, request: &str) -> Result<Place, ApiError> {
        let place = signed_token::open(self.secret, DATA, token).and_then(|content| {
            let (result, rest) = content.split_first_chunk()?;
            let (after, of) = rest.split_first_chunk()?;
            let result = usize::try_from(u64::from_le_bytes(*result)).ok()?;
            let after = Some(u64::from_le_bytes(*after)).filter(|after| *after < u64::MAX);
            (of == request.as_bytes()).then_some(Place { result, after })
        });
        place.ok_or_else(|| {
            let text = "The NextToken is not of this request; begin it anew.";
            ApiError::new("InvalidNextToken", text)
        })
    }

    /// Returns the records of a volume, in steps that fit the period.
    fn records(&self, id: VolumeId, span: Span, period: u64) -> Records {
        if period < MINUTE_S {
            self.cloudwatch.steps(id, span.start, span.end)
        } else {
            self.cloudwatch.minutes(id, span.start, span.end)
        }
    }
}

/// Reads the metrics of a GetMetricData. Requests often have several metrics of one volume in a
/// row, so it caches the records of the last volume.
struct Reader<'a> {
    call: &'a Call<'a>,
    span: Span,
    last: Option<(VolumeId, u64, Records)>,
}

impl Reader<'_> {
    /// Returns the beginnings of periods that have a value, in order, with the values of a
    /// statistic.
    fn points(&mut self, series: Series, statistic: Statistic, period: u64) -> Vec<(u64, f64)> {
        let Some((id, metric)) = series else { return Vec::new() };
        // Periods are those of the clock, and each is whole.
        let start = self.span.start - self.span.start % period;
        let end = self.span.end.div_ceil(period).saturating_mul(period);
        if self.last.as_ref().is_none_or(|(of, by, _)| (*of, *by) != (id, period)) {
            let records = self.call.records(id, Span { start, end }, period);
            self.last = Some((id, period, records));
        }
        let records = self.last.as_ref().map_or(&[][..], |(_, _, records)| records);
        let buckets = buckets(values(records, metric), start, period);
        buckets.iter().map(|bucket| (bucket.start, bucket.value(statistic))).collect()
    }
}

fn values<'a>(
    records: &'a [(u64, Record)],
    metric: &'a Metric,
) -> impl Iterator<Item = (u64, f64)> + 'a {
    records.iter().filter_map(|(start, record)| Some((*start, (metric.value)(record)?)))
}

/// Returns a metric as ListMetrics shows it.
fn described(id: VolumeId, metric: &Metric) -> Value {
    let dimension = [("Name", Value::text(DIMENSION)), ("Value", Value::text(id.to_string()))];
    Value::map([
        ("Namespace", Value::text(NAMESPACE)),
        ("MetricName", Value::text(metric.name)),
        ("Dimensions", Value::List(vec![Value::map(dimension)])),
    ])
}

fn result(id: &str, label: &str, points: &[(u64, f64)], is_complete: bool) -> Value {
    let times = points.iter().map(|(start, _)| Value::time(*start));
    let values = points.iter().map(|(_, value)| Value::Number(*value));
    let status = if is_complete { "Complete" } else { "PartialData" };
    Value::map([
        ("Id", Value::text(id)),
        ("Label", Value::text(label)),
        ("Timestamps", Value::List(times.collect())),
        ("Values", Value::List(values.collect())),
        ("StatusCode", Value::text(status)),
    ])
}

/// Returns the statistics of a GetMetricStatistics by name; a repeated name counts once.
fn statistics(
    input: &mut Input,
    parameter: &str,
    max: usize,
) -> Result<Vec<(String, Statistic)>, ApiError> {
    let is_extended = parameter == "ExtendedStatistics";
    let mut statistics = Vec::new();
    for statistic in input.list(parameter, max)? {
        let Value::Text(name) = statistic else {
            return Err(input.wrong(parameter, "must be a list of texts"));
        };
        let found = Statistic::by_name(&name);
        let fits = |found: &Statistic| matches!(found, Statistic::Percentile(_)) == is_extended;
        let found = found.filter(fits).ok_or_else(|| {
            let known = if is_extended { PERCENTILES } else { STATISTICS };
            input.wrong(parameter, &format!("has '{name:.64}'; it may have {known}"))
        })?;
        if !statistics.iter().any(|(other, _)| *other == name) {
            statistics.push((name, found));
        }
    }
    Ok(statistics)
}

/// Returns the percentiles of a GetMetricStatistics, which has either them or other statistics.
fn statistics_extended(
    input: &mut Input,
    is_alone: bool,
) -> Result<Vec<(String, Statistic)>, ApiError> {
    let percentiles = statistics(input, "ExtendedStatistics", 10)?;
    let text = match (is_alone, percentiles.is_empty()) {
        (true, true) => {
            "At least one of the parameters Statistics and ExtendedStatistics must be specified."
        }
        (false, false) => {
            "The parameters Statistics and ExtendedStatistics must not both be specified; send \
             two requests."
        }
        _ => return Ok(percentiles),
    };
    Err(ApiError::new("InvalidParameterCombination", text))
}

/// Reads the requested metric. Returns it with its name.
fn series(input: &mut Input) -> Result<(Series, String), ApiError> {
    let namespace = input.required("Namespace", NAME_MAX)?;
    let name = input.required("MetricName", NAME_MAX)?;
    let mut dimensions = Vec::new();
    for mut dimension in input.structures("Dimensions", DIMENSIONS_MAX)? {
        let name = dimension.required("Name", NAME_MAX)?;
        dimensions.push((name, dimension.required("Value", VALUE_MAX)?));
        dimension.done()?;
    }
    let unit = unit(input)?;
    let volume = match dimensions.as_slice() {
        [(name, value)] if name == DIMENSION => value.parse().ok(),
        _ => None,
    };
    let metric = metrics::by_name(&name).filter(|_| namespace == NAMESPACE);
    let metric = metric.filter(|metric| unit.is_none_or(|unit| metric.unit == unit));
    Ok((volume.zip(metric), name))
}

fn unit(input: &mut Input) -> Result<Option<&'static str>, ApiError> {
    let Some(unit) = input.text("Unit", NAME_MAX)? else { return Ok(None) };
    let known = UNITS.into_iter().find(|known| *known == unit);
    known.map(Some).ok_or_else(|| input.wrong("Unit", "is no unit"))
}

fn period(input: &mut Input) -> Result<u64, ApiError> {
    let period = input.number("Period")?.ok_or_else(|| input.missing("Period"))?;
    if is_period(period) { Ok(period) } else { Err(input.wrong("Period", PERIODS)) }
}

fn span(input: &mut Input) -> Result<Span, ApiError> {
    let start = input.time("StartTime")?;
    let end = input.time("EndTime")?;
    match start.cmp(&end) {
        std::cmp::Ordering::Less => Ok(Span { start, end }),
        std::cmp::Ordering::Equal => {
            Err(input.wrong("StartTime", "must not equal parameter EndTime"))
        }
        std::cmp::Ordering::Greater => {
            Err(input.wrong("StartTime", "must be less than the parameter EndTime"))
        }
    }
}

fn queries(input: &mut Input, account: &str) -> Result<Vec<Query<Series>>, ApiError> {
    let structures = input.structures("MetricDataQueries", QUERIES_MAX)?;
    if structures.is_empty() {
        return Err(input.missing("MetricDataQueries"));
    }
    let mut queries: Vec<Query<Series>> = Vec::with_capacity(structures.len());
    for structure in structures {
        let query = query(structure, account)?;
        if queries.iter().any(|other| other.id == query.id) {
            return Err(input.wrong("MetricDataQueries", &format!("has the Id {} twice", query.id)));
        }
        queries.push(query);
    }
    Ok(queries)
}

fn query(mut input: Input, account: &str) -> Result<Query<Series>, ApiError> {
    let id = input.required("Id", NAME_MAX)?;
    let is_legal = |at: usize, c: char| match at {
        0 => c.is_ascii_lowercase(),
        _ => c.is_ascii_alphanumeric() || c == '_',
    };
    if !id.chars().enumerate().all(|(at, c)| is_legal(at, c)) {
        let pattern = "is not matching the expected pattern ^[a-z][a-zA-Z0-9_]*$";
        return Err(input.wrong("Id", pattern));
    }
    let expression = input.text("Expression", TEXT_MAX)?;
    let label = input.text("Label", TEXT_MAX)?;
    let is_returned = input.boolean("ReturnData")?.unwrap_or(true);
    let own_period = input.number("Period")?;
    if input.text("AccountId", NAME_MAX)?.is_some_and(|other| other != account) {
        return Err(input.wrong("AccountId", &format!("must be {account}")));
    }
    let stat = input.structure("MetricStat")?;
    input.done()?;
    let (source, name) = match (stat, expression) {
        (Some(_), Some(_)) => {
            return Err(input.wrong("Expression", "must not be specified beside MetricStat"));
        }
        (None, None) => {
            return Err(input.wrong("MetricStat", "or the parameter Expression is required"));
        }
        (None, Some(_)) if own_period.is_some_and(|period| !is_period(period)) => {
            return Err(input.wrong("Period", PERIODS));
        }
        (None, Some(text)) => (Source::Expression(text, own_period), id.clone()),
        (Some(stat), None) => metric_stat(stat)?,
    };
    if let Source::Metric(_, _, period) = source
        && own_period.is_some_and(|own| own != period)
    {
        return Err(input.wrong("Period", "must equal MetricStat.Period, or be left out"));
    }
    Ok(Query { id, label: label.unwrap_or(name), source, is_returned })
}

fn metric_stat(mut input: Input) -> Result<(Source<Series>, String), ApiError> {
    let period = period(&mut input)?;
    let stat = input.required("Stat", NAME_MAX)?;
    let statistic = Statistic::by_name(&stat).ok_or_else(|| {
        let known = format!("{STATISTICS}, or {PERCENTILES}");
        input.wrong("Stat", &format!("is '{stat:.64}', which is not supported; it may be {known}"))
    })?;
    let unit = unit(&mut input)?;
    let mut metric = input.structure("Metric")?.ok_or_else(|| input.missing("Metric"))?;
    input.done()?;
    let (series, name) = series(&mut metric)?;
    metric.done()?;
    let fits = |metric: &Metric| unit.is_none_or(|unit| metric.unit == unit);
    let series = series.filter(|(_, metric)| fits(metric));
    Ok((Source::Metric(series, statistic, period), name))
}

/// Returns whether a text is an offset such as `+0130`.
fn is_zone(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or_default();
    digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_telemetry::cloudwatch::METRICS_SPACE;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// An hour of 2023, in seconds.
    const T0: u64 = 472_222 * HOUR_S;

    fn id(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    fn kept(minutes: &BTreeMap<(u128, u64), Record>) -> (tempfile::TempDir, CloudWatch) {
        let folder = tempfile::tempdir().unwrap();
        let cloudwatch = CloudWatch::open(folder.path(), METRICS_SPACE).unwrap();
        let mut by_time = BTreeMap::<u64, Vec<_>>::new();
        for ((bits, start), record) in minutes {
            by_time.entry(*start).or_default().push((id(*bits), *record, metrics::mask(record)));
        }
        for (start, records) in by_time {
            cloudwatch.store().write(start, &records);
        }
        (folder, cloudwatch)
    }

    fn call(cloudwatch: &CloudWatch, now_s: u64) -> Call<'_> {
        let secret = "secret";
        let account = "000000000000";
        Call { cloudwatch, secret, account, now: UnixMs(now_s * 1_000) }
    }

    fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
        let Value::Map(fields) = value else { panic!("{value:?}") };
        fields.iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
        let Some(Value::List(items)) = field(value, name) else { panic!("{name}: {value:?}") };
        items
    }

    #[test]
    fn pages_of_metrics_make_the_whole_list() {
        let minutes = (1..=60).map(|bits| {
            let start = T0 + if bits > 50 { 10 * HOUR_S } else { 0 };
            ((bits, start), Record::example(bits as u64 * 35))
        });
        let (_folder, cloudwatch) = kept(&minutes.collect());
        let now = T0 + 12 * HOUR_S;
        let pages = |filter: Option<(&str, &str)>| {
            let mut pages = Vec::new();
            let mut token = None;
            loop {
                let fields = filter.into_iter().chain(token.as_deref().map(|t| ("NextToken", t)));
                let fields = fields.map(|(name, text)| (name.to_owned(), Value::text(text)));
                let input = Input::new(Value::Map(fields.collect()), "InvalidParameterValue");
                let reply = call(&cloudwatch, now).list_metrics(input.unwrap()).unwrap();
                pages.push(items(&reply, "Metrics").to_vec());
                match field(&reply, "NextToken") {
                    Some(Value::Text(next)) => token = Some(next.clone()),
                    _ => return pages,
                }
            }
        };
        let each = metrics::mask(&Record::example(35)).count_ones() as usize;
        let all = pages(None);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [500, 60 * each - 500]);
        let all = all.concat();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
        let active = pages(Some(("RecentlyActive", "PT3H"))).concat();
        assert_eq!(active, all[50 * each..]);
        assert_eq!(pages(Some(("MetricName", "VolumeReadOps"))).concat().len(), 60);
        assert_eq!(pages(Some(("Namespace", "AWS/EC2"))).concat(), []);
    }

    fn query_of(number: usize, bits: u128, period: u64, stat: &str) -> Value {
        let dimension =
            [("Name", Value::text("VolumeId")), ("Value", Value::text(id(bits).to_string()))];
        let metric = Value::map([
            ("Namespace", Value::text("AWS/EBS")),
            ("MetricName", Value::text("VolumeReadOps")),
            ("Dimensions", Value::List(vec![Value::map(dimension)])),
        ]);
        let stat = [
            ("Metric", metric),
            ("Period", Value::Number(period as f64)),
            ("Stat", Value::text(stat)),
        ];
        Value::map([("Id", Value::text(format!("q{number}"))), ("MetricStat", Value::map(stat))])
    }

    /// Returns times and values by query, from all pages.
    fn data(
        cloudwatch: &CloudWatch,
        queries: &[Value],
        (start, end): (u64, u64),
        order: &str,
        max: u64,
    ) -> BTreeMap<String, Vec<(f64, f64)>> {
        let mut found = BTreeMap::<String, Vec<(f64, f64)>>::new();
        let mut token = None;
        loop {
            let request = Value::map([
                ("MetricDataQueries", Value::List(queries.to_vec())),
                ("StartTime", Value::time(start)),
                ("EndTime", Value::time(end)),
                ("ScanBy", Value::text(order)),
                ("MaxDatapoints", Value::Number(max as f64)),
            ]);
            let request = request.with_some("NextToken", token.take());
            let hash = sigv4::sha256_hex(fingerprint(&request).as_bytes());
            let input = Input::new(request, "ValidationError").unwrap();
            let reply = call(cloudwatch, end).metric_data(input, &hash).unwrap();
            let mut count = 0;
            for result in items(&reply, "MetricDataResults") {
                let Some(Value::Text(id)) = field(result, "Id") else { panic!("{result:?}") };
                let points = items(result, "Timestamps").iter().zip(items(result, "Values"));
                for point in points {
                    let (Value::Time(time), Value::Number(value)) = point else { panic!() };
                    found.entry(id.clone()).or_default().push((*time, *value));
                    count += 1;
                }
            }
            assert!(count <= max, "{count}");
            token = field(&reply, "NextToken").cloned();
            if token.is_none() {
                return found;
            }
        }
    }

    #[test]
    fn get_metric_data_accepts_at_most_500_queries() {
        let (_folder, cloudwatch) = kept(&BTreeMap::new());
        let queries: Vec<Value> = (0..501).map(|n| query_of(n, 1, 60, "Sum")).collect();
        let span = (T0, T0 + 60);
        assert!(data(&cloudwatch, &queries[..500], span, "TimestampAscending", 9).is_empty());
        let mut input = Value::map([("MetricDataQueries", Value::List(queries))]);
        input = input.with_some("StartTime", Some(Value::time(T0)));
        input = input.with_some("EndTime", Some(Value::time(T0 + 60)));
        let input = Input::new(input, "ValidationError").unwrap();
        let error = call(&cloudwatch, T0).metric_data(input, "").unwrap_err();
        assert_eq!(error.code, "ValidationError");
        let text = "The collection MetricDataQueries must not have a size greater than 500.";
        assert_eq!(error.message, text);
    }

    fn metric_data(
        cloudwatch: &CloudWatch,
        queries: Vec<Value>,
        length: u64,
    ) -> Result<Value, ApiError> {
        let request = Value::map([
            ("MetricDataQueries", Value::List(queries)),
            ("StartTime", Value::time(T0)),
            ("EndTime", Value::time(T0 + length)),
        ]);
        let input = Input::new(request, "ValidationError").unwrap();
        call(cloudwatch, T0 + length).metric_data(input, "")
    }

    fn expression(id: &str, text: &str) -> Value {
        Value::map([("Id", Value::text(id)), ("Expression", Value::text(text))])
    }

    #[test]
    fn expressions_of_a_request_are_bounded_in_data_points_and_results() {
        let (_folder, cloudwatch) = kept(&BTreeMap::from([((1, T0), Record::example(1))]));
        let one = query_of(1, 1, 60, "Sum");
        let filled = |length: u64| {
            metric_data(&cloudwatch, vec![one.clone(), expression("e", "FILL(q1, 0)")], length)
        };
        assert_eq!(items(&filled(600).unwrap(), "MetricDataResults").len(), 2);
        let error = filled(2_000_000 * 60).unwrap_err();
        let text = "Error in expression 'e': the expressions of the request use more than \
                    1000000 data points; ask for less time, longer periods or fewer metrics.";
        assert_eq!((error.code, &*error.message), ("ValidationError", text));
        let mut queries: Vec<Value> = (0..400).map(|n| query_of(n, 1, 60, "Sum")).collect();
        queries.push(expression("e", "METRICS()"));
        let reply = metric_data(&cloudwatch, queries.clone(), 600).unwrap();
        assert_eq!(items(&reply, "MetricDataResults").len(), 800);
        queries.push(expression("f", "METRICS() * 2"));
        let error = metric_data(&cloudwatch, queries, 600).unwrap_err();
        assert!(error.message.contains("more than 1000 results"), "{error:?}");
    }

    #[test]
    fn expressions_that_use_each_other_are_computed_in_any_order() {
        let (_folder, cloudwatch) = kept(&BTreeMap::from([((1, T0), Record::example(1))]));
        let mut queries = vec![expression("a", "b * 2"), expression("b", "q1 + 0")];
        queries.push(query_of(1, 1, 60, "Sum"));
        let reply = metric_data(&cloudwatch, queries, 60).unwrap();
        let values = items(&reply, "MetricDataResults").iter().map(|it| items(it, "Values"));
        let reads = Record::example(1).reads as f64;
        let expected = [2.0 * reads, reads, reads].map(|value| vec![Value::Number(value)]);
        assert_eq!(values.collect::<Vec<_>>(), expected);
        let circle = vec![expression("a", "b"), expression("b", "a")];
        let error = metric_data(&cloudwatch, circle, 60).unwrap_err();
        let text = "Error in expression 'a': it refers to its own result.";
        assert_eq!((error.code, &*error.message), ("ValidationError", text));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(3)))]

        /// The oracle has all minutes in a map, and reads each period of the clock.
        #[test]
        fn pages_of_metric_data_agree_with_a_map_of_all_minutes(
            minutes in proptest::collection::btree_map(
                ((0..3_u128), (0..600_u64).prop_map(|at| T0 + at * 60)), any::<u64>(), 0..80,
            ),
            from in 0..500_u64, length in 1..40_000_u64, minutes_each in 1..200_u64,
            max in 1..50_u64, descending: bool,
        ) {
            let minutes: BTreeMap<(u128, u64), Record> =
                minutes.into_iter().map(|(at, seed)| (at, Record::example(seed))).collect();
            let (_folder, cloudwatch) = kept(&minutes);
            let period = minutes_each * 60;
            let span = (T0 + from, T0 + from + length);
            let query = |n: usize| query_of(n, n as u128, period, "Sum");
            let queries: Vec<Value> = (0..3).map(query).collect();
            let order = if descending { "TimestampDescending" } else { "TimestampAscending" };
            let found = data(&cloudwatch, &queries, span, order, max);
            let mut expected = BTreeMap::<String, Vec<(f64, f64)>>::new();
            for number in 0..3_u128 {
                let mut start = span.0 / period * period;
                while start < span.1 {
                    let within = minutes.range((number, start)..(number, start + period));
                    let reads: Vec<f64> = within.map(|(_, record)| record.reads as f64).collect();
                    if !reads.is_empty() {
                        let point = (start as f64, reads.iter().sum());
                        expected.entry(format!("q{number}")).or_default().push(point);
                    }
                    start += period;
                }
            }
            if descending {
                expected.values_mut().for_each(|points| points.reverse());
            }
            prop_assert_eq!(found, expected);
        }
    }
}
