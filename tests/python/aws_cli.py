"""aws-cli, every verb of EC2 that the server has: the client's own `main`, many times in a process.

A process for each call would take most of a minute to start. The environment says where.
"""

import contextlib
import io
import json
import re
import time

import awscli.clidriver

PATIENCE_S = 60

def aws(line, code=0):
    """Runs `aws ec2` with these words; returns what it prints, or its error's code."""
    words = line.split()
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        found = client_for(words[0]).main(["ec2", *words, "--output", "json"])
    assert found == code, f"{line}: {found}, expected {code}: {complained.getvalue()}"
    if code:
        return re.search(r"\((\S+)\)", complained.getvalue())[1]
    text = printed.getvalue()
    return json.loads(text) if text.strip() else None


def client_for(verb, shared=awscli.clidriver.create_clidriver()):
    """These verbs leave hooks in their client, over which others trip."""
    leaves = verb.startswith("modify-") and verb.endswith("-attribute")
    return awscli.clidriver.create_clidriver() if leaves else shared


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def completed(snapshot):
    comes(f"describe-snapshots --snapshot-ids {snapshot}", "Snapshots", "completed")
    aws(f"wait snapshot-completed --snapshot-ids {snapshot}")


def available(volume):
    comes(f"describe-volumes --volume-ids {volume}", "Volumes", "available")
    aws(f"wait volume-available --volume-ids {volume}")


def comes(line, result, state):
    """Asks more often than `wait`, which sleeps for 15 seconds after the first time."""
    deadline = time.monotonic() + PATIENCE_S
    while aws(line)[result][0]["State"] != state:
        assert time.monotonic() < deadline, f"{line}: not {state}"
        time.sleep(0.05)


def look_around():
    expect(aws("describe-regions")["Regions"][0]["RegionName"], "local-1")
    zone = aws("describe-availability-zones")["AvailabilityZones"][0]["ZoneName"]
    expect(aws("describe-account-attributes --attribute-names max-instances")
           ["AccountAttributes"][0]["AttributeName"], "max-instances")
    expect(aws("describe-instance-types --instance-types m5.large")
           ["InstanceTypes"][0]["InstanceType"], "m5.large")
    expect(aws("describe-subnets", code=255), "InvalidAction")
    return zone


def instances(zone):
    mapping = "DeviceName=/dev/sda1,Ebs={VolumeSize=1,VolumeType=gp3,DeleteOnTermination=true}"
    run = aws(f"run-instances --count 1 --instance-type m5.large --image-id ami-12345678 "
              f"--placement AvailabilityZone={zone} --block-device-mappings {mapping} "
              f"--tag-specifications ResourceType=instance,Tags=[{{Key=Name,Value=web}}]")
    made = run["Instances"][0]["InstanceId"]
    aws(f"wait instance-running --instance-ids {made}")
    found = aws("describe-instances --filters Name=tag:Name,Values=web")
    disk = found["Reservations"][0]["Instances"][0]["BlockDeviceMappings"][0]["Ebs"]
    aws(f"stop-instances --instance-ids {made}")
    aws(f"wait instance-stopped --instance-ids {made}")
    aws(f"start-instances --instance-ids {made}")
    kept = "DeviceName=/dev/sda1,Ebs={DeleteOnTermination=false}"
    aws(f"modify-instance-attribute --instance-id {made} --block-device-mappings {kept}")
    shown = aws(f"describe-instance-attribute --instance-id {made} --attribute blockDeviceMapping")
    expect(shown["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"], False)
    aws(f"terminate-instances --instance-ids {made}")
    aws(f"wait instance-terminated --instance-ids {made}")
    available(disk["VolumeId"])
    aws(f"delete-volume --volume-id {disk['VolumeId']}")


def volumes(zone):
    made = aws(f"create-volume --availability-zone {zone} --size 1 --volume-type gp3")["VolumeId"]
    available(made)
    copy = aws(f"copy-volumes --source-volume-id {made} --size 2")["Volumes"][0]["VolumeId"]
    available(copy)
    aws(f"modify-volume-attribute --volume-id {made} --auto-enable-io")
    shown = aws(f"describe-volume-attribute --volume-id {made} --attribute autoEnableIO")
    expect(shown["AutoEnableIO"]["Value"], True)
    aws(f"enable-volume-io --volume-id {made}")
    expect(aws(f"describe-volume-status --volume-ids {made}")
           ["VolumeStatuses"][0]["VolumeStatus"]["Status"], "ok")
    local = "describe-instances --filters Name=instance-type,Values=evenkeel.local"
    instance = aws(local)["Reservations"][0]["Instances"][0]["InstanceId"]
    aws(f"attach-volume --volume-id {made} --instance-id {instance} --device /dev/sdf")
    aws(f"wait volume-in-use --volume-ids {made}")
    aws(f"modify-volume --volume-id {made} --iops 3500 --size 8")
    expect(aws(f"describe-volumes-modifications --volume-ids {made}")
           ["VolumesModifications"][0]["TargetIops"], 3500)
    aws(f"create-tags --resources {made} --tags Key=team,Value=blue")
    expect(len(aws("describe-tags --filters Name=key,Values=team")["Tags"]), 1)
    aws(f"delete-tags --resources {made} --tags Key=team")
    both = aws(f"create-snapshots --instance-specification InstanceId={instance}")["Snapshots"]
    completed(both[0]["SnapshotId"])
    aws(f"detach-volume --volume-id {made}")
    aws(f"delete-volume --volume-id {copy}")
    return made, copy


def snapshots(volume, zone):
    made = aws(f"create-snapshot --volume-id {volume} --description nightly")["SnapshotId"]
    completed(made)
    copy = aws(f"copy-snapshot --source-region local-1 --source-snapshot-id {made} "
               "--description copy")["SnapshotId"]
    completed(copy)
    aws(f"modify-snapshot-attribute --snapshot-id {made} --attribute createVolumePermission "
        "--operation-type add --user-ids 123456789012")
    attribute = f"--snapshot-id {made} --attribute createVolumePermission"
    expect(aws(f"describe-snapshot-attribute {attribute}")["CreateVolumePermissions"],
           [{"UserId": "123456789012"}])
    aws(f"reset-snapshot-attribute {attribute}")
    expect(aws(f"describe-snapshot-attribute {attribute}")["CreateVolumePermissions"], [])
    aws(f"lock-snapshot --snapshot-id {made} --lock-mode governance --lock-duration 1")
    expect(aws("describe-locked-snapshots")["Snapshots"][0]["LockState"], "governance")
    expect(aws(f"delete-snapshot --snapshot-id {made}", code=255), "SnapshotLocked")
    aws(f"unlock-snapshot --snapshot-id {made}")
    where = f"--availability-zones {zone} --source-snapshot-ids {made}"
    expect(len(aws(f"enable-fast-snapshot-restores {where}")["Successful"]), 1)
    expect(aws("describe-fast-snapshot-restores")["FastSnapshotRestores"][0]["State"], "enabled")
    expect(len(aws(f"disable-fast-snapshot-restores {where}")["Successful"]), 1)
    aws(f"delete-snapshot --snapshot-id {copy}")
    return made, copy


def recycle_bin(volume, snapshot):
    binned = [each["VolumeId"] for each in aws("list-volumes-in-recycle-bin")["Volumes"]]
    assert volume in binned, binned
    expect([each["SnapshotId"] for each in aws("list-snapshots-in-recycle-bin")["Snapshots"]],
           [snapshot])
    aws(f"wait volume-deleted --volume-ids {volume}")
    aws(f"restore-volume-from-recycle-bin --volume-id {volume}")
    available(volume)
    aws(f"restore-snapshot-from-recycle-bin --snapshot-id {snapshot}")
    completed(snapshot)


def encryption():
    aws("enable-ebs-encryption-by-default")
    expect(aws("get-ebs-encryption-by-default")["EbsEncryptionByDefault"], True)
    aws("disable-ebs-encryption-by-default")
    key = aws("get-ebs-default-kms-key-id")["KmsKeyId"]
    expect(aws(f"modify-ebs-default-kms-key-id --kms-key-id {key}")["KmsKeyId"], key)
    expect(aws("reset-ebs-default-kms-key-id")["KmsKeyId"], key)


zone = look_around()
encryption()
instances(zone)
volume, binned = volumes(zone)
snapshot, binned_snapshot = snapshots(volume, zone)
recycle_bin(binned, binned_snapshot)
