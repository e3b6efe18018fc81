"""CloudWatch as boto3 speaks it, in all three protocols. The environment says where.

Arguments: `new` or `kept`, a volume, and how many reads and writes of 4,096 bytes it has answered.
"""

import datetime
import os
import sys
import time

import boto3
import botocore.config
import botocore.exceptions
import botocore.model

PROTOCOLS = ("json", "smithy-rpc-v2-cbor", "query")
PATIENCE_S = 90
BLOCK = 4096


def connect(protocol, **changes):
    """A client that speaks this protocol; botocore prefers JSON otherwise."""
    botocore.model.PRIORITY_ORDERED_SUPPORTED_PROTOCOLS = (protocol,)
    config = botocore.config.Config(retries={"total_max_attempts": 1}, proxies={})
    client = boto3.client("cloudwatch", config=config, **changes)
    expect(client.meta.service_model.resolved_protocol, protocol)
    return client


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def refused(code, call, status=400, **parameters):
    """Checks that a call fails with this code and HTTP status."""
    try:
        call(**parameters)
    except botocore.exceptions.ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{parameters}: {error}, expected {code}"
        expect(error.response["ResponseMetadata"]["HTTPStatusCode"], status)
        assert error.response["Error"]["Message"], error
        return
    raise AssertionError(f"{parameters}: done, expected {code}")


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def hour():
    return {"StartTime": now() - datetime.timedelta(hours=1),
            "EndTime": now() + datetime.timedelta(minutes=2)}


def dimensions(volume):
    return [{"Name": "VolumeId", "Value": volume}]


def statistics(client, volume, name, period, **more):
    more = {"Statistics": ["Sum", "Average", "Minimum", "Maximum", "SampleCount"], **more}
    more = {name: value for name, value in more.items() if value is not None}
    return client.get_metric_statistics(
        Namespace="AWS/EBS", MetricName=name, Dimensions=dimensions(volume), Period=period,
        **{**hour(), **more})


def total(client, volume, name, period):
    return sum(point["Sum"] for point in statistics(client, volume, name, period)["Datapoints"])


def query(volume, name, identifier, period=60, stat="Sum", **more):
    metric = {"Namespace": "AWS/EBS", "MetricName": name, "Dimensions": dimensions(volume)}
    return {"Id": identifier, "MetricStat": {"Metric": metric, "Period": period, "Stat": stat},
            **more}


def until(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.5)


def sums(client, volume, period, reads, writes):
    """Checks the counts, which are exact, in steps of this period."""
    for name, expected in [
            ("VolumeReadOps", reads), ("VolumeReadBytes", reads * BLOCK),
            ("VolumeWriteOps", writes), ("VolumeWriteBytes", writes * BLOCK),
            ("VolumeConsumedReadWriteOps", reads + writes)]:
        expect((name, total(client, volume, name, period)), (name, expected))
    for name in ("VolumeTotalReadTime", "VolumeTotalWriteTime"):
        seconds = total(client, volume, name, period)
        assert 0 < seconds < PATIENCE_S, f"{name}: {seconds}"


def points(client, volume):
    """What the values of ten seconds have."""
    answer = statistics(client, volume, "VolumeWriteOps", 10)
    expect(answer["Label"], "VolumeWriteOps")
    for point in answer["Datapoints"]:
        expect((point["Unit"], point["SampleCount"]), ("Count", 1))
        expect(point["Timestamp"].second % 10, 0)
        assert point["Minimum"] == point["Maximum"] == point["Average"] == point["Sum"], point
    idle = statistics(client, volume, "VolumeIdleTime", 10)["Datapoints"]
    assert all(0 <= point["Sum"] <= 10.5 for point in idle), idle
    expect(statistics(client, volume, "VolumeWriteOps", 10, Unit="Bytes")["Datapoints"], [])
    expect(statistics(client, volume, "BurstBalance", 10)["Datapoints"], [])
    expect(statistics(client, "vol-00000000000000000", "VolumeIdleTime", 10)["Datapoints"], [])
    for name, unit in [("VolumeQueueLength", "Count"), ("VolumeThroughputPercentage", "Percent"),
                       ("VolumeAvgIOPS", "Count/Second"), ("VolumeStalledIOCheck", "None"),
                       ("VolumeAvgThroughput", "Kilobytes/Second"),
                       ("VolumeAvgWriteLatency", "Milliseconds")]:
        found = statistics(client, volume, name, 10, Unit=unit)["Datapoints"]
        assert found and all(point["Unit"] == unit for point in found), f"{name}: {found}"


def errors(client, volume):
    def wrong(code, **more):
        refused(code, lambda **more: statistics(client, volume, "VolumeReadOps", **more), **more)

    wrong("InvalidParameterValue", period=7)
    wrong("InvalidParameterValue", period=60, StartTime=now() + datetime.timedelta(1))
    wrong("InvalidParameterCombination", period=60, StartTime=now() - datetime.timedelta(2))
    refused("InvalidParameterCombination", client.get_metric_statistics, Namespace="AWS/EBS",
            MetricName="VolumeReadOps", Period=60, **hour())
    wrong("InvalidParameterValue", period=60, Statistics=["Median"])
    for name in ("p100.1", "tm99", "IQM", "Sum"):
        wrong("InvalidParameterValue", period=60, Statistics=None, ExtendedStatistics=[name])
    wrong("InvalidParameterValue", period=60, Statistics=["p99"])
    wrong("InvalidParameterCombination", period=60, ExtendedStatistics=["p99"])
    wrong("InvalidParameterValue", period=60, Unit="Furlongs")
    refused("InvalidParameterValue", client.list_metrics, RecentlyActive="PT4H")
    refused("InvalidParameterValue", client.list_metrics, NextToken="none")
    refused("InvalidAction", client.list_dashboards)

    def invalid(code, *queries, **more):
        more = {**hour(), **more}
        refused(code, client.get_metric_data, MetricDataQueries=list(queries), **more)

    one = query(volume, "VolumeReadOps", "a")
    for expression in ("b", "c", "SEARCH('{AWS/EBS,VolumeId}', 'Sum')", "a >",
                       "SELECT SUM(VolumeReadOps) FROM \"AWS/EBS\"", "a ^ 2", "(" * 33 + "a",
                       "IF(a > 1, a)", "a" * 2049, "SUM(a)", "METRICS() / METRICS()"):
        invalid("ValidationError", one, {"Id": "b", "Expression": expression})
    invalid("ValidationError", one, {"Id": "b", "Expression": "a", "Period": 300})
    invalid("ValidationError", {**one, "Expression": "b"})
    invalid("ValidationError", {"Id": "b"})
    invalid("ValidationError", {"Id": "b", "Expression": "c"}, {"Id": "c", "Expression": "b"})
    invalid("ValidationError", one, one)
    invalid("ValidationError", {**one, "Id": "A"})
    for stat in ("tm99", "p100.1", "IQM"):
        invalid("ValidationError", query(volume, "VolumeReadOps", "a", stat=stat))
    invalid("ValidationError", query(volume, "VolumeReadOps", "a", period=61))
    invalid("ValidationError", one, ScanBy="Sideways")
    invalid("ValidationError", one, MaxDatapoints=100801)
    invalid("ValidationError", one, LabelOptions={"Timezone": "UTC"})
    invalid("ValidationError", one, **dict.fromkeys(["StartTime", "EndTime"], now()))
    invalid("InvalidNextToken", one, NextToken="none")


def listed(client, volume, **more):
    pages = client.get_paginator("list_metrics").paginate(Dimensions=dimensions(volume), **more)
    return [metric for page in pages for metric in page["Metrics"]]


def lists(client, volume):
    every = listed(client, volume)
    expect(len(every), 17)  # BurstBalance is not one of io2's
    assert all(metric["Namespace"] == "AWS/EBS" for metric in every), every
    assert all(metric["Dimensions"] == dimensions(volume) for metric in every), every
    expect(listed(client, volume, RecentlyActive="PT3H"), every)
    expect(listed(client, volume, Namespace="AWS/EC2"), [])
    one = listed(client, volume, Namespace="AWS/EBS", MetricName="VolumeReadOps")
    expect([metric["MetricName"] for metric in one], ["VolumeReadOps"])
    expect(client.list_metrics(Dimensions=[{"Name": "VolumeId"}])["Metrics"], every)
    expect(client.list_metrics(Dimensions=[{"Name": "InstanceId"}])["Metrics"], [])


def data(client, volume, reads, writes):
    queries = [query(volume, "VolumeReadOps", "reads", Label="R & W"),
               query(volume, "VolumeWriteOps", "writes", stat="Sum"),
               query(volume, "VolumeWriteOps", "hours", period=3600),
               query(volume, "VolumeIdleTime", "none", ReturnData=False)]
    span = hour()
    for order in ("TimestampAscending", "TimestampDescending"):
        ask = {"MetricDataQueries": queries, "ScanBy": order, **span}
        results = client.get_metric_data(**ask)["MetricDataResults"]
        expect([result["Id"] for result in results], ["reads", "writes", "hours"])
        expect([result["Label"] for result in results], ["R & W"] + ["VolumeWriteOps"] * 2)
        expect({result["StatusCode"] for result in results}, {"Complete"})
        expect([sum(result["Values"]) for result in results], [reads, writes, writes])
        for result in results:
            down = order == "TimestampDescending"
            expect(result["Timestamps"], sorted(result["Timestamps"], reverse=down))
            expect(len(result["Values"]), len(result["Timestamps"]))
        # A value a page.
        paginator = client.get_paginator("get_metric_data")
        values = {"reads": [], "writes": [], "hours": []}
        for page in paginator.paginate(MaxDatapoints=1, **ask):
            found = page["MetricDataResults"]
            assert sum(len(result["Values"]) for result in found) <= 1, found
            for result in found:
                values[result["Id"]] += result["Values"]
        expect(values, {result["Id"]: result["Values"] for result in results})
    token = client.get_metric_data(MaxDatapoints=1, **ask)["NextToken"]
    ask["MetricDataQueries"] = queries[:1]
    refused("InvalidNextToken", client.get_metric_data, NextToken=token, **ask)


def percentiles(client, volume):
    """Percentiles are of the values of a period, as the other statistics are."""
    ask = {"Statistics": None, "ExtendedStatistics": ["p0", "p50.5", "p100"]}
    found = statistics(client, volume, "VolumeWriteOps", 3600, **ask)["Datapoints"]
    others = statistics(client, volume, "VolumeWriteOps", 3600)["Datapoints"]
    expect(len(found), len(others))
    assert found, "no data"
    for point, other in zip(found, others):
        assert not {"Sum", "Average"} & set(point), point
        values = point["ExtendedStatistics"]
        expect(sorted(values), ["p0", "p100", "p50.5"])
        expect((values["p0"], values["p100"]), (other["Minimum"], other["Maximum"]))
        assert values["p0"] <= values["p50.5"] <= values["p100"], point
    stats = [query(volume, "VolumeWriteOps", name, period=3600, stat=stat)
             for name, stat in [("low", "p0"), ("min", "Minimum"), ("high", "p100.0"),
                                ("max", "Maximum")]]
    results = client.get_metric_data(MetricDataQueries=stats, **hour())["MetricDataResults"]
    low, least, high, most = [result["Values"] for result in results]
    expect((low, high), (least, most))


def math(client, volume, reads, writes):
    """Expressions over metrics, and over other expressions, whichever comes first."""
    queries = [{"Id": "twice", "Expression": "2 * both", "Label": "Twice"},
               {"Id": "both", "Expression": "SUM(METRICS('ops'))", "Period": 60},
               query(volume, "VolumeReadOps", "ops_r"),
               query(volume, "VolumeWriteOps", "ops_w", ReturnData=False),
               {"Id": "each", "Expression": "METRICS() / PERIOD(ops_r)", "Label": "per second"},
               {"Id": "part", "Expression": "100 * (ops_r / FILL(both, 1))"},
               {"Id": "full", "Expression": "FILL(ops_w, 0)"},
               {"Id": "hidden", "Expression": "RATE(ops_w)", "ReturnData": False}]
    ask = {"MetricDataQueries": queries, "ScanBy": "TimestampAscending", **hour()}
    results = client.get_metric_data(**ask)["MetricDataResults"]
    expect([(result["Id"], result["Label"]) for result in results],
           [("twice", "Twice"), ("both", "both"), ("ops_r", "VolumeReadOps"),
            ("each", "per second VolumeReadOps"), ("each", "per second VolumeWriteOps"),
            ("part", "part"), ("full", "full")])
    expect({result["StatusCode"] for result in results}, {"Complete"})
    sums = [sum(result["Values"]) for result in results]
    total = reads + writes
    expect(sums[:3] + [sums[6]], [2 * total, total, reads, writes])
    assert abs(sums[3] * 60 - reads) < 1e-6 and abs(sums[4] * 60 - writes) < 1e-6, sums
    assert all(0 <= value <= 100 for value in results[5]["Values"]), results[5]
    # A period of every minute until now, and every value again in pages of three.
    times = results[6]["Timestamps"]
    assert len(times) >= 60, times
    expect({(later - sooner).seconds for sooner, later in zip(times, times[1:])}, {60})
    paged = []
    for page in client.get_paginator("get_metric_data").paginate(MaxDatapoints=3, **ask):
        for result in page["MetricDataResults"]:
            if paged and paged[-1][0] == result["Label"]:
                paged[-1][1].extend(result["Values"])
            else:
                paged.append((result["Label"], list(result["Values"])))
    whole = [(result["Label"], result["Values"]) for result in results]
    # A minute may have ended between the two, and it adds a value of 0 at the end of each.
    expect([name for name, _ in paged], [name for name, _ in whole])
    for (_, values), (_, first) in zip(paged, whole):
        expect(values[:len(first)], first)


def signatures(protocol):
    for code, changes in [
            ("SignatureDoesNotMatch", {"aws_secret_access_key": "wrong"}),
            ("SignatureDoesNotMatch", {"region_name": "elsewhere-1"}),
            ("InvalidClientTokenId", {"aws_access_key_id": "AKIANOBODY"})]:
        if "aws_access_key_id" in changes:
            changes["aws_secret_access_key"] = "any"
        elif "aws_secret_access_key" in changes:
            changes["aws_access_key_id"] = os.environ["AWS_ACCESS_KEY_ID"]
        refused(code, connect(protocol, **changes).list_metrics, status=403)


def main(mode, volume, reads, writes):
    reads, writes = int(reads), int(writes)
    clients = [connect(protocol) for protocol in PROTOCOLS]
    for protocol in PROTOCOLS:
        signatures(protocol)
    if mode == "new":
        until("ten seconds", lambda: total(clients[0], volume, "VolumeWriteOps", 10) == writes)
        for client in clients:
            sums(client, volume, 10, reads, writes)
            points(client, volume)
            errors(client, volume)
    until("a minute", lambda: total(clients[0], volume, "VolumeWriteOps", 60) == writes)
    for client in clients:
        sums(client, volume, 60, reads, writes)
        lists(client, volume)
        data(client, volume, reads, writes)
        percentiles(client, volume)
        math(client, volume, reads, writes)


main(*sys.argv[1:])
