"""Asks a server about the parameters of its verbs, with botocore's models of them."""

import base64
import copy
import datetime
import hashlib
import json
import os
import urllib.parse

import boto3
import botocore.config
import botocore.exceptions
import botocore.handlers

from replies import NOT_SERVED, Checker

UNIT = 512 << 10
BLOCK = bytes(UNIT)
# All values of an enumeration are tried, or only one if there are more.
ENUM_MAX = 32
# Members of a structure that are told one by one; the structure as a whole if there are more.
MEMBERS_MAX = 12
# Structures that every verb has in the same form: told as a whole.
WHOLE = {"Tags", "Filters", "TagSpecifications", "Dimensions"}
# What goes with a parameter, or is in the same structure, though the model requires it not.
COMPANIONS = {"BlockDeviceMappings": {"DeviceName": "/dev/sdz"}, "KmsKeyId": {"Encrypted": True},
              "ContextEntries": {"ContextKeyName": "aws:SourceIp"}}
# What verbs need though the model requires it not. What a server does not know is left out again.
NEEDS = {
    "CreateVolume": {"Size": 10},
    "ModifyVolume": {"Size": 20},
    "RunInstances": {"InstanceType": "m5.large", "BlockDeviceMappings": [
        {"DeviceName": "/dev/sdz", "Ebs": {"VolumeSize": 1}}]},
    "ModifySnapshotAttribute": {"CreateVolumePermission": {"Add": [{"Group": "all"}]}},
    "ModifyInstanceAttribute": {"BlockDeviceMappings": [
        {"DeviceName": "/dev/sdz", "Ebs": {"DeleteOnTermination": True}}]},
    "GetMetricStatistics": {"Statistics": ["Sum"]},
    "GetMetricData": {"MetricDataQueries": [{"Id": "m1", "MetricStat": {
        "Metric": {"Namespace": "AWS/EBS", "MetricName": "VolumeReadOps"},
        "Period": 60, "Stat": "Sum"}}]},
}
# What no server knows: an answer about it shows that parameters are read before all else.
NO_PARAMETER = "NoSuchParameter"


def token():
    """A new one each time, so that no two requests are signed alike."""
    return os.urandom(8).hex()


def hashed(data):
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


class Server:
    """Clients that send exactly what they are told, and remember what came back."""

    def __init__(self):
        self.checker = Checker()
        self.extra, self.malformed, self.answer, self.silent = {}, None, None, False
        session = boto3.Session()
        # The same endpoint serves it, once it serves it.
        monitoring = os.environ.get("AWS_ENDPOINT_URL_CLOUDWATCH")
        monitoring = monitoring or os.environ["AWS_ENDPOINT_URL_EC2"]
        config = botocore.config.Config(retries={"total_max_attempts": 1}, proxies={})
        self.clients = {
            "ec2": session.client("ec2", config=config),
            "ebs": session.client("ebs", config=config),
            "cloudwatch": session.client("cloudwatch", config=config, endpoint_url=monitoring)}
        for service in ("iam", "sts", "cloudtrail"):
            self.clients[service] = session.client(service, config=config)
        for client in self.clients.values():
            events = client.meta.events
            events.register("before-call", self.before_call)
            events.register("before-parse", self.before_parse)
            # Clients add these by themselves; here each parameter is sent in its turn.
            events.unregister("before-parameter-build", botocore.handlers.generate_idempotent_uuid)
            events.unregister("before-call.ec2.CopySnapshot",
                              botocore.handlers.inject_presigned_url_ec2)

    def before_call(self, params, model, **_):
        if isinstance(params["body"], dict):
            params["body"].update(self.extra)
        elif self.extra and params["body"][:1] == b"{":
            params["body"] = json.dumps({**json.loads(params["body"]), **self.extra}).encode()
        elif self.extra and params["body"][:1] in map(bytes, ([0xA0 + n] for n in range(22))):
            # A map in CBOR: one pair more.
            params["body"] = bytes([params["body"][0] + 1]) + params["body"][1:]
            params["body"] += b"".join(bytes([0x60 + len(text)]) + text.encode()
                                       for pair in self.extra.items() for text in pair)
        elif self.extra:
            joint = "&" if "?" in params["url"] else "?"
            params["url"] += joint + urllib.parse.urlencode(self.extra)
        if self.malformed:
            params["headers"][self.malformed] = "~"

    def before_parse(self, operation_model, response_dict, **_):
        if not self.silent:
            self.answer = self.checker.check(operation_model, response_dict)

    def call(self, service, verb, parameters, extra=None, malformed=None):
        """What is answered, and the error's code and text; none of success."""
        self.extra, self.malformed, self.answer = extra or {}, malformed, ("none", "")
        reply = None
        try:
            reply = self.clients[service]._make_api_call(verb, parameters)
        except botocore.exceptions.ClientError:
            pass
        except botocore.exceptions.BotoCoreError as error:
            if self.answer != NOT_SERVED:
                raise AssertionError(f"{verb} with {parameters}: {error}") from error
        finally:
            self.extra, self.malformed = {}, None
        return reply, self.answer

    def do(self, service, verb, **parameters):
        """A call that must succeed."""
        reply, error = self.call(service, verb, parameters)
        assert error is None, f"{verb} with {parameters}: {error}"
        return reply


class World:
    """Resources of a server, each made when it is first asked for."""

    def __init__(self, server):
        self.server, self.known = server, {}

    def __getattr__(self, name):
        if name not in self.known:
            self.known[name] = getattr(World, f"make_{name}")(self)
        return self.known[name]

    def ec2(self, verb, **parameters):
        return self.server.do("ec2", verb, **parameters)

    def make_place(self):
        return self.ec2("DescribeAvailabilityZones")["AvailabilityZones"][0]

    def make_zone(self):
        return self.place["ZoneName"]

    def make_volume(self):
        new = dict(AvailabilityZone=self.zone, Size=10, VolumeType="gp3")
        return self.ec2("CreateVolume", ClientToken=token(), **new)["VolumeId"]

    def make_instance(self):
        """A host. The action is in no model, so another one's call is sent with its name."""
        tag = token()
        self.server.silent = True
        self.server.call("ec2", "DescribeInstances", {}, extra={
            "Action": "RegisterHost", "InstanceType": "m5.large", "Address": "192.0.2.7",
            "Tag.1.Key": tag})
        self.server.silent = False
        found = self.ec2("DescribeInstances", Filters=[{"Name": "tag-key", "Values": [tag]}])
        return found["Reservations"][0]["Instances"][0]["InstanceId"]

    def make_started(self):
        new = dict(VolumeSize=1, ClientToken=token())
        return self.server.do("ebs", "StartSnapshot", **new)["SnapshotId"]

    def make_snapshot(self):
        """One that is complete at once, so that nobody waits for it."""
        snapshot = self.make_started()
        self.server.do("ebs", "PutSnapshotBlock", SnapshotId=snapshot, **block())
        self.server.do("ebs", "CompleteSnapshot", SnapshotId=snapshot, ChangedBlocksCount=1)
        return snapshot

    def make_user(self):
        """A user, whose name no other one has."""
        name = "user-" + token()
        self.server.do("iam", "CreateUser", UserName=name)
        return name

    def make_key(self):
        made = self.server.do("iam", "CreateAccessKey", UserName=self.user)
        return made["AccessKey"]["AccessKeyId"]

    def make_block_token(self):
        blocks = self.server.do("ebs", "ListSnapshotBlocks", SnapshotId=self.snapshot)
        return blocks["Blocks"][0]["BlockToken"]


def block():
    return dict(BlockIndex=0, BlockData=BLOCK, DataLength=UNIT, Checksum=hashed(BLOCK),
                ChecksumAlgorithm="SHA256")


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


MANAGED = "arn:aws:iam::aws:policy/ReadOnlyAccess"
POLICY = json.dumps({"Version": "2012-10-17", "Statement": {
    "Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}})

# A plausible value by a member's name; lists have one.
NAMED = {
    "VolumeId": lambda w: w.volume, "SourceVolumeId": lambda w: w.volume,
    "ResourceId": lambda w: w.volume, "ExcludeDataVolumeId": lambda w: w.volume,
    "SnapshotId": lambda w: w.snapshot, "SourceSnapshotId": lambda w: w.snapshot,
    "ParentSnapshotId": lambda w: w.snapshot, "FirstSnapshotId": lambda w: w.snapshot,
    "SecondSnapshotId": lambda w: w.snapshot,
    "InstanceId": lambda w: w.instance, "InstanceType": lambda _: "m5.large",
    "ImageId": lambda _: "ami-00000000000000000",
    "AvailabilityZone": lambda w: w.zone, "ZoneName": lambda w: w.zone,
    "DestinationAvailabilityZone": lambda w: w.zone,
    "AvailabilityZoneId": lambda w: w.place["ZoneId"], "ZoneId": lambda w: w.place["ZoneId"],
    "RegionName": lambda w: w.place["RegionName"], "SourceRegion": lambda w: w.place["RegionName"],
    "DestinationRegion": lambda w: w.place["RegionName"],
    "Owner": lambda _: "self", "RestorableBy": lambda _: "self",
    "Device": lambda _: "/dev/sdz", "DeviceName": lambda _: "/dev/sdz",
    "KmsKeyId": lambda _: "alias/aws/ebs",
    "KmsKeyArn": lambda _: "arn:aws:kms:local-1:000000000000:key/0",
    "Namespace": lambda _: "AWS/EBS", "MetricName": lambda _: "VolumeReadOps",
    "PresignedUrl": lambda _: "http://127.0.0.1/", "UserGroup": lambda _: "all",
    "UserId": lambda _: "000000000000",
    "ExtendedStatistic": lambda _: "p99", "Period": lambda _: 300, "Timeout": lambda _: 60,
    "Size": lambda _: 20, "VolumeSize": lambda _: 1, "Iops": lambda _: 3_000,
    "Throughput": lambda _: 125, "MaxResults": lambda _: 100, "LockDuration": lambda _: 1,
    "EbsCardIndex": lambda _: 0, "StartingBlockIndex": lambda _: 0, "BlockIndex": lambda _: 0,
    "StartTime": lambda _: now() - datetime.timedelta(hours=1), "EndTime": lambda _: now(),
    "BlockToken": lambda w: w.block_token, "Expression": lambda _: "m1",
    "DataLength": lambda _: UNIT,
    "UserName": lambda w: w.user, "AccessKeyId": lambda w: w.key,
    "PolicyArn": lambda _: MANAGED, "PermissionsBoundary": lambda _: MANAGED,
    "PolicyName": lambda _: "own", "PolicyDocument": lambda _: POLICY, "VersionId": lambda _: "v1",
    "PolicySourceArn": lambda w: f"arn:aws:iam::000000000000:user/{w.user}",
    "ActionNames": lambda _: "ec2:DescribeVolumes", "ResourceArns": lambda _: "*",
    "PolicyInputList": lambda _: POLICY, "ResourcePolicy": lambda _: POLICY,
    "PermissionsBoundaryPolicyInputList": lambda _: POLICY, "ContextKeyValues": lambda _: "1",
    "ContextKeyName": lambda _: "aws:SourceIp",
    "Path": lambda _: "/", "PathPrefix": lambda _: "/", "NewPath": lambda _: "/",
    "RoleArn": lambda _: "arn:aws:iam::000000000000:role/one", "RoleName": lambda _: "one",
    "RoleSessionName": lambda _: "one", "GroupName": lambda _: "one",
    "AssumeRolePolicyDocument": lambda _: POLICY,
}


def wire_name(name, shape, protocol):
    """A parameter's name in requests."""
    given = shape.serialization
    if protocol == "ec2":
        told = given.get("name", name)
        return given.get("queryName") or told[:1].upper() + told[1:]
    return given.get("name", name)


class Verb:
    """One verb: its parameters, and what the server answers about each."""

    def __init__(self, server, world, service, name):
        self.server, self.world, self.service, self.name = server, world, service, name
        model = server.clients[service].meta.service_model
        self.protocol = model.protocol
        self.model = model.operation_model(name)
        self.shape = self.model.input_shape
        self.found = {}  # parameter -> {value: class}
        self.base = {}

    def members(self):
        return self.shape.members if self.shape else {}

    def is_dry(self):
        return "DryRun" in self.members()

    # Values.

    def values(self, name, shape):
        """What is sent for a member, one after the other."""
        kind, wire = shape.type_name, wire_name(name, shape, self.protocol)
        named = NAMED.get(name) or NAMED.get(wire)
        if kind == "list":
            one = [self.values(wire, shape.member)[0]] if name not in WHOLE else self.whole(name)
            return [one]
        if kind == "structure":
            return [self.structure(shape)]
        if kind == "boolean":
            return [True, False]
        if getattr(shape, "enum", None) and len(shape.enum) <= ENUM_MAX:
            return list(shape.enum)
        if named:
            return [named(self.world)]
        if kind == "timestamp":
            return [now() + datetime.timedelta(days=1)]
        if kind == "blob":
            return [BLOCK]
        if kind in ("integer", "long", "float", "double"):
            return [min(max(1, shape.metadata.get("min", 1)), shape.metadata.get("max", 1))]
        return [shape.enum[0] if getattr(shape, "enum", None) else "text"]

    def whole(self, name):
        kinds = [kind for kind in ("snapshot", "volume", "instance") if kind in self.name.lower()]
        pair = [{"Key": "matrix", "Value": "one"}]
        return {"Tags": pair, "Filters": [{"Name": "tag-key", "Values": ["matrix"]}],
                "TagSpecifications": [{"ResourceType": (kinds + ["volume"])[0], "Tags": pair}],
                "Dimensions": [{"Name": "VolumeId", "Value": "vol-0"}]}[name]

    def structure(self, shape):
        """What is required of it, and one member at least."""
        wanted = shape.required_members or list(shape.members)[:1]
        return {name: self.values(name, shape.members[name])[0] for name in wanted}

    # Requests.

    def paths(self):
        """The parameters, as the names that lead to each."""
        for name, shape in self.members().items():
            yield from self.paths_in((name,), shape)

    def paths_in(self, path, shape):
        inner = shape.member if shape.type_name == "list" else shape
        deep = len(path) > 1 and path[-1] != "Ebs" or len(path) > 2
        if inner.type_name != "structure" or path[-1] in WHOLE or deep \
                or len(inner.members) > MEMBERS_MAX:
            yield path, shape
            return
        for name, member in inner.members.items():
            yield from self.paths_in((*path, name), member)

    def shown(self, path):
        shape, names = self.shape, []
        for name in path:
            shape = (shape.member if shape.type_name == "list" else shape).members[name]
            names.append(wire_name(name, shape, self.protocol))
        return ".".join(names)

    def request(self, path, value):
        """The base, with this at the end of the path."""
        request = copy.deepcopy(self.base)
        if len(path) == 1:
            beside = COMPANIONS.get(path[0], {}).items()
            request.update({name: it for name, it in beside if name in self.members()})
        shape, place = self.shape, request
        for name in path[:-1]:
            shape = shape.members[name]
            if shape.type_name == "list":
                shape = shape.member
                place = place.setdefault(name, [dict(COMPANIONS.get(name, {}))])[0]
            else:
                place = place.setdefault(name, {})
            for needed in shape.required_members:
                place.setdefault(needed, self.values(needed, shape.members[needed])[0])
        if isinstance(value, dict) and isinstance(place.get(path[-1]), dict):
            value = {**place[path[-1]], **value}
        place[path[-1]] = value
        return request

    def ask(self, request, **more):
        if self.is_dry():
            request = {**request, "DryRun": True}
        return self.server.call(self.service, self.name, request, **more)[1]

    def renewed(self):
        """What a call uses up is made anew: a snapshot is completed once, a signature used once."""
        if self.name == "CompleteSnapshot":
            self.base["SnapshotId"] = self.world.make_started()
        elif self.name == "StartSnapshot":
            self.base["ClientToken"] = token()

    # Answers.

    def judged(self, answer):
        """A class of parameters, by what is answered."""
        if answer is None:
            return "works"
        code, text = answer
        if answer == NOT_SERVED or code in ("InvalidAction", "UnknownOperationException"):
            return "no verb"
        if code in ("RequestLimitExceeded", "RequestThrottledException"):
            self.report(f"is not answered: {text}")
        if code == "UnknownParameter":
            return "absent"
        if self.service == "cloudwatch" and "not recognized" in text:
            return "absent"
        if code == "UnsupportedOperation":
            return "refused"
        if self.service in ("ebs", "cloudtrail"):
            # One type of error for everything: the text tells them apart.
            if "unknown field" in text or text.endswith(" is unknown"):
                return "absent"
            if "not supported" in text:
                return "refused"
        # An error about a value, or about a resource's state, is one of a server that knows it.
        return "works"

    def find_base(self):
        """Finds what the verb needs, as the model and the server have it; returns the answer."""
        required = self.shape.required_members if self.shape else []
        self.base = {name: self.values(name, self.members()[name])[0] for name in required}
        self.base.update(NEEDS.get(self.name, {}))
        if self.service == "ebs":
            self.base.update(self.direct_base())
        if self.name in ("CreateAccessKey", "DeleteAccessKey", "UpdateAccessKey"):
            # The model has it optional: a user that signs may leave it out.
            self.base["UserName"] = self.world.user
        answer = self.adapted()
        if self.judged(answer) == "refused":
            # One value of an enumeration may be refused, and another not.
            for name in required:
                for value in self.values(name, self.members()[name])[1:]:
                    self.base[name] = value
                    answer = self.adapted()
                    if self.judged(answer) != "refused":
                        return answer
        return answer

    def direct_base(self):
        if self.name == "PutSnapshotBlock":
            return dict(SnapshotId=self.world.started, **block())
        if self.name == "CompleteSnapshot":
            return dict(ChangedBlocksCount=0, SnapshotId=self.world.make_started(),
                        Checksum=hashed(b""), ChecksumAlgorithm="SHA256",
                        ChecksumAggregationMethod="LINEAR")
        if self.name == "StartSnapshot":
            return dict(ClientToken=token())
        return {}

    def adapted(self):
        """Adds what the server misses, and leaves out what it does not know."""
        for _ in range(8):
            answer = self.ask(self.base)
            code, text = answer or ("", "")
            words = text.replace("/", " ").split()
            named = [name for name, shape in self.members().items()
                     if any(word.split(".")[0].lower() in
                            (wire_name(name, shape, self.protocol).lower(), name.lower())
                            for word in words)]
            if code == "MissingParameter":
                new = [name for name in named if name not in self.base]
                if not new:
                    break
                self.base[new[0]] = self.values(new[0], self.members()[new[0]])[0]
            elif code == "UnknownParameter" and any(name in self.base for name in named):
                self.base = {name: it for name, it in self.base.items() if name not in named}
            else:
                break
        return answer

    def probe(self):
        """Asks about each parameter."""
        answer = self.find_base()
        if self.judged(answer) == "no verb":
            self.found = {self.shown(path): {"": "absent"} for path, _ in self.paths()}
            return False
        self.check_that_names_are_read(answer)
        for path, shape in self.paths():
            shown, classes = self.shown(path), {}
            if path == ("DryRun",):
                # The base was sent with it, and succeeds only if the server does not know it.
                classes = {"": "absent" if answer is None else "works"}
            elif self.service == "ebs" and shape.serialization.get("location") == "header":
                classes = {"": self.header(shape)}
            elif shape.serialization.get("location") == "uri" or shape.type_name == "blob":
                # There is no request without it.
                classes = {"": "works"}
            else:
                for value in self.values(path[-1], shape):
                    classes[value_text(value)] = self.parameter(path, value)
            self.found[shown] = classes
        return True

    def parameter(self, path, value):
        self.renewed()
        answer = self.ask(self.request(path, value))
        if (answer or ("",))[0] == "MissingParameter":
            # Known if names are read before that: something is missing with it.
            answer = self.ask(self.request(path, value), extra={NO_PARAMETER: "1"})
            if NO_PARAMETER not in (answer or ("", ""))[1]:
                self.report(f"{self.shown(path)} cannot be asked about: {answer}")
            return "works"
        return self.judged(answer)

    def header(self, shape):
        """Headers that nobody reads are ignored: one that is read has a value that is wrong."""
        self.renewed()
        answer = self.ask(self.base, malformed=shape.serialization["name"])
        return "absent" if answer is None else self.judged(answer)

    def check_that_names_are_read(self, answer):
        if self.name in ("PutSnapshotBlock", "CompleteSnapshot"):
            return
        if answer and answer[0] == "MissingParameter":
            self.report(f"no request is found that is complete: {answer}")
        answer = self.ask(self.base, extra={NO_PARAMETER: "1"})
        if self.judged(answer) != "absent":
            self.report(f"an unknown parameter is not told, so nothing is known: {answer}")

    def report(self, problem):
        self.server.checker.report(f"{self.name}: {problem}")


def value_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
