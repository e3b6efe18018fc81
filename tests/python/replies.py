"""Holds replies to the output shapes of botocore's service models.

boto3 ignores what it does not know, and so a misspelt element is never noticed by a client that
works. This names every member that a shape has not, and every text that is not of its type.
"""

import base64
import datetime
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import botocore.parsers
import botocore.session

# What docs/reference/api.md calls an extension: shape and element, and shape and value.
EXTENSIONS = {("Volume", "errorReason")}
# The last is in no model, but in the example of AWS's reference of SimulatePrincipalPolicy.
VALUES = {("InstanceType", "evenkeel.local"), ("PolicySourceType", "IAM Policy")}
# All of EC2's replies have the first; those without an output shape have both.
NO_MEMBERS = {"requestId", "return"}

# The answer to a request of a service that the server does not have.
NOT_SERVED = ("not served", "")

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
WHOLE = re.compile(r"-?\d+")
WIDTHS = {"integer": 31, "long": 63}
SCALARS = {"string", "character", "blob", "boolean", "timestamp", "integer", "long", "float",
           "double"}


def is_scalar_text(shape, text):
    """Whether an element's text is of the shape's type."""
    kind = shape.type_name
    if kind in WIDTHS:
        return bool(WHOLE.fullmatch(text)) and -1 << WIDTHS[kind] <= int(text) < 1 << WIDTHS[kind]
    if kind == "boolean":
        return text in ("true", "false")
    if kind == "timestamp":
        return bool(TIME.fullmatch(text))
    if kind in ("float", "double"):
        return bool(re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text))
    if kind == "blob":
        return is_base64(text)
    return is_in_enum(shape, text)


def is_base64(text):
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def is_in_enum(shape, text):
    return not getattr(shape, "enum", None) or text in shape.enum or (shape.name, text) in VALUES


def is_scalar_value(shape, value):
    """The same for JSON and CBOR."""
    kind, number = shape.type_name, not isinstance(value, bool)
    if kind in WIDTHS:
        return number and isinstance(value, int) and abs(value) < 1 << WIDTHS[kind]
    if kind in ("float", "double"):
        return number and isinstance(value, (int, float))
    if kind == "timestamp":
        return number and isinstance(value, (int, float, datetime.datetime))
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "blob":
        return isinstance(value, bytes) or isinstance(value, str) and is_base64(value)
    return isinstance(value, str) and is_in_enum(shape, value)


def local_name(element):
    return element.tag.rpartition("}")[2]


class Xml:
    """EC2's replies."""

    def __init__(self, report):
        self.report = report

    def structure(self, shape, element, place, own=frozenset()):
        members = {member.serialization.get("name", name): member
                   for name, member in shape.members.items()} if shape else {}
        self.no_text(element, place)
        seen = set()
        for child in element:
            name = local_name(child)
            inner = f"{place}.{name}"
            member = members.get(name)
            if name in seen and not (member and member.serialization.get("flattened")):
                self.report(f"{inner}: is there twice")
            seen.add(name)
            if member is not None:
                self.value(member, child, inner)
            elif name not in own and (shape and shape.name, name) not in EXTENSIONS:
                self.report(f"{inner}: not a member of {shape.name if shape else 'any shape'}")

    def value(self, shape, element, place):
        if shape.type_name == "structure":
            self.structure(shape, element, place)
        elif shape.type_name == "list":
            self.list(shape, element, place)
        elif shape.type_name not in SCALARS:
            self.report(f"{place}: no check is written for type {shape.type_name}")
        elif len(element):
            self.report(f"{place}: members where a {shape.type_name} is expected")
        elif not is_scalar_text(shape, element.text or "") and not is_empty_text(shape, element):
            self.report(f"{place}: {element.text!r} is no {shape.type_name} of {shape.name}")

    def no_text(self, element, place):
        text = "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
        if text:
            self.report(f"{place}: text {text!r} where members are expected")

    def list(self, shape, element, place):
        if shape.serialization.get("flattened"):
            self.value(shape.member, element, place)
            return
        self.no_text(element, place)
        item = shape.member.serialization.get("name", "member")
        for child in element:
            if local_name(child) == item:
                self.value(shape.member, child, f"{place}.{item}")
            else:
                self.report(f"{place}.{local_name(child)}: a list's elements are called {item}")

    def reply(self, operation, body):
        """A reply that is no error."""
        root = ElementTree.fromstring(body)
        shape = operation.output_shape
        # Real EC2 answers with this namespace, and so has it end with a slash.
        expected = operation.service_model.metadata["xmlNamespace"].rstrip("/")
        if root.tag != f"{{{expected}/}}{operation.name}Response":
            self.report(f"{operation.name}: the reply is called {root.tag}")
        own = {"requestId"} if shape else NO_MEMBERS
        self.structure(shape, root, operation.name, own)

    def error(self, operation, body):
        """An error: `Response/Errors/Error` with a code and a text, and the request's id."""
        root = ElementTree.fromstring(body)
        found = [each.tag for each in root.iter()]
        if found != ["Response", "Errors", "Error", "Code", "Message", "RequestID"]:
            self.report(f"{operation.name}: an error has the elements {found}")
        return root.findtext("Errors/Error/Code"), root.findtext("Errors/Error/Message")


class Query(Xml):
    """The replies of IAM and STS."""

    def reply(self, operation, body):
        """A reply that is no error: it has `ActionResult` and `ResponseMetadata`."""
        root = ElementTree.fromstring(body)
        expected = operation.service_model.metadata["xmlNamespace"]
        if root.tag != f"{{{expected}}}{operation.name}Response":
            self.report(f"{operation.name}: the reply is called {root.tag}")
        wrapper = operation.output_shape and operation.output_shape.serialization["resultWrapper"]
        for child in root:
            if local_name(child) == wrapper:
                self.structure(operation.output_shape, child, operation.name)
            elif [local_name(each) for each in child.iter()] != ["ResponseMetadata", "RequestId"]:
                self.report(f"{operation.name}.{local_name(child)}: not a part of a reply")
        if len(root) != 1 + bool(wrapper):
            self.report(f"{operation.name}: the reply has {len(root)} parts")

    def error(self, operation, body):
        """An error: `ErrorResponse/Error` with its sender, a code and a text, and the id."""
        root = ElementTree.fromstring(body)
        found = [local_name(each) for each in root.iter()]
        if found != ["ErrorResponse", "Error", "Type", "Code", "Message", "RequestId"]:
            self.report(f"{operation.name}: an error has the elements {found}")
        texts = {local_name(each): each.text for each in root.iter()}
        if texts.get("Type") not in ("Sender", "Receiver"):
            self.report(f"{operation.name}: an error is of {texts.get('Type')}")
        return texts.get("Code"), texts.get("Message")


def is_empty_text(shape, element):
    """An enumeration without a value is an empty element, as EC2 has it."""
    return shape.type_name == "string" and not element.text


class Fields:
    """Replies in JSON and CBOR."""

    def __init__(self, report):
        self.report = report

    def value(self, shape, value, place):
        kind = shape.type_name
        if kind == "structure":
            members = {member.serialization.get("name", name): member
                       for name, member in shape.members.items()
                       if "location" not in member.serialization}
            self.structure(shape, members, value, place)
        elif kind == "list" and isinstance(value, list):
            for each in value:
                self.value(shape.member, each, f"{place}[]")
        elif kind == "map" and isinstance(value, dict):
            for each in value.values():
                self.value(shape.value, each, f"{place}{{}}")
        elif kind not in SCALARS or not is_scalar_value(shape, value):
            self.report(f"{place}: {value!r} is no {kind} ({shape.name})")

    def structure(self, shape, members, value, place):
        if not isinstance(value, dict):
            self.report(f"{place}: {value!r} is no {shape.name}")
            return
        for name, inner in value.items():
            if name in members:
                self.value(members[name], inner, f"{place}.{name}")
            else:
                self.report(f"{place}.{name}: not a member of {shape.name}")

    def headers(self, operation, headers):
        shape = operation.output_shape
        known = {member.serialization["name"].lower(): member
                 for member in (shape.members.values() if shape else ())
                 if member.serialization.get("location") == "header"}
        for name, text in headers.items():
            member = known.get(name.lower())
            if member is not None and not is_scalar_text(member, text):
                self.report(f"{operation.name}.{name}: {text!r} is no {member.type_name}")
            elif member is None and name.lower().startswith("x-amz-"):
                self.report(f"{operation.name}.{name}: not a header of {shape and shape.name}")

    def reply(self, operation, body, headers):
        """A reply that is no error."""
        self.headers(operation, headers)
        shape = operation.output_shape
        payload = shape and shape.serialization.get("payload")
        if payload and shape.members[payload].type_name == "blob":
            return
        if shape:
            self.value(shape, decoded(body, headers), operation.name)

    def error(self, operation, body, headers):
        """An error, as the model has its type; those of signatures are in no model."""
        value = decoded(body, headers)
        kind = headers.get("x-amzn-errortype") or value.get("__type", "")
        kind = kind.rpartition("#")[2].partition(":")[0]
        value.pop("__type", None)
        place = f"{operation.name} ({kind})"
        shape = operation.service_model.shape_for_error_code(kind)
        text = value.get("Message") or value.get("message")
        members = {"message"}
        if operation.service_model.protocol == "json":
            # Services of AWS write the text in both ways, and SDKs read both, also of errors that
            # have no members in the model.
            value = {name: it for name, it in value.items() if name.lower() != "message"}
            members = set()
        if shape is not None:
            self.value(shape, value, place)
        elif {name.lower() for name in value} != members:
            self.report(f"{place}: an error has the members {sorted(value)}")
        return kind, text


def decoded(body, headers):
    """The body's value, in JSON or CBOR."""
    if "cbor" in headers.get("content-type", ""):
        stream = io.BufferedReader(io.BytesIO(body))
        return botocore.parsers.RpcV2CBORParser().parse_data_item(stream) if body else {}
    return json.loads(body or b"{}")


class Checker:
    """What is wrong with the replies so far, and of which operations one was no error."""

    def __init__(self):
        self.problems = []
        self.succeeded = set()

    def report(self, problem):
        if problem not in self.problems:
            self.problems.append(problem)

    def check(self, operation, response):
        """Checks a raw reply; returns the code and the text of an error, or None."""
        status, body = response["status_code"], response["body"]
        headers = response["headers"]
        protocol = operation.service_model.protocol
        xml = protocol in ("ec2", "query")
        if status >= 400 and not xml and not re.search("json|cbor", headers["content-type"]):
            return NOT_SERVED
        checks = {"ec2": Xml, "query": Query}.get(protocol, Fields)(self.report)
        more = () if xml else (headers,)
        try:
            if status >= 300:
                code, text = checks.error(operation, body, *more)
                if code in ("InternalError", "InternalServerException"):
                    self.report(f"{operation.name}: the server failed: {text}")
                return code, text or ""
            checks.reply(operation, body, *more)
        except (ElementTree.ParseError, ValueError, AttributeError) as error:
            self.report(f"{operation.name}: HTTP status {status}, a reply that is none: {error}")
            return ("unreadable", "") if status >= 300 else None
        self.succeeded.add(operation.name)
        return None


def check_the_check():
    """A check that finds nothing may check nothing: each of what is wrong here must be found."""
    session = botocore.session.get_session()
    for (service, verb), (body, right, wrong) in SAMPLES.items():
        operation = session.get_service_model(service).operation_model(verb)
        for text in (right, *wrong):
            checker, found = Checker(), body.replace("@", text).encode()
            checker.check(operation, {"status_code": 200, "body": found, "headers": {}})
            assert len(checker.problems) == (text != right), f"{text}: {checker.problems}"


# A reply, what is right in it, and what is wrong in its place.
SAMPLES = {
    ("ec2", "DescribeVolumes"): (
        """<DescribeVolumesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
        <requestId>1</requestId><volumeSet><item><volumeId>vol-1</volumeId>@</item></volumeSet>
        </DescribeVolumesResponse>""",
        "<status>in-use</status>",
        ["<status>used</status>", "<status/><status/>", "<state>in-use</state>", "in-use",
         "<status><name>in-use</name></status>", "<iops>many</iops>", "<size>2147483648</size>",
         "<encrypted>yes</encrypted>", "<createTime>today</createTime>",
         "<attachmentSet><member/></attachmentSet>"]),
    ("iam", "ListUsers"): (
        """<ListUsersResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><ListUsersResult>
        <Users><member><UserName>ann</UserName>@</member></Users></ListUsersResult>
        <ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></ListUsersResponse>""",
        "<CreateDate>2026-11-30T00:00:00Z</CreateDate>",
        ["<CreateDate>today</CreateDate>", "<Arn/><Arn/>", "<Secret>1</Secret>", "ann",
         "<Tags><item/></Tags>"]),
    ("cloudtrail", "LookupEvents"): (
        '{"Events":[{"EventName":"CreateVolume",@}]}',
        '"EventTime":1.5',
        ['"EventTime":"now"', '"eventTime":1', '"Resources":{}', '"ReadOnly":true']),
    ("ebs", "ListSnapshotBlocks"): (
        '{"Blocks":[{"BlockIndex":0}],"ExpiryTime":1.5,@}',
        '"VolumeSize":1',
        ['"VolumeSize":"1"', '"VolumeSize":true', '"volumeSize":1', '"NextToken":1']),
}
