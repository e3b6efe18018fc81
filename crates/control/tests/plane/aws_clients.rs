//! Real clients: boto3 and aws-cli, unmodified. The test skips with a message if they are not
//! installed.

use std::io::Write;
use std::process::{Command, Output};

use crate::support;
use crate::support::Server;

/// The environment that `evenkeel env` prints.
fn with_keys(program: &str, server: &Server) -> Command {
    let mut command = Command::new(program);
    command
        .env("AWS_ACCESS_KEY_ID", &server.credentials.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &server.credentials.secret_access_key)
        .env("AWS_DEFAULT_REGION", support::REGION)
        .env("AWS_ENDPOINT_URL_EC2", format!("http://{}", server.address))
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_PAGER", "")
        .env_remove("AWS_SESSION_TOKEN")
        .env_remove("AWS_PROFILE");
    command
}

fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn boto3_works_unmodified() {
    run_boto3("boto3_client.py");
}

#[test]
fn boto3_fills_reads_and_compares_snapshots() {
    run_boto3("boto3_ebs.py");
}

#[test]
fn boto3_manages_users_keys_and_policies() {
    run_boto3("boto3_iam.py");
}

#[allow(clippy::unwrap_used)] // a test's, which may panic
fn run_boto3(name: &str) {
    let python = std::env::var("EVENKEEL_PYTHON").unwrap_or_else(|_| "python3".into());
    if !works(&python, &["-c", "import boto3"]) {
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED: {python} has no boto3; install it or set EVENKEEL_PYTHON"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let script = format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"));
    let endpoint = format!("http://{}", server.address);
    let output = with_keys(&python, &server).args([script.as_str(), &endpoint]).output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    assert!(shown(&output).contains("all as expected"));
}

#[test]
fn aws_cli_works_unmodified() {
    let aws = std::env::var("EVENKEEL_AWS").unwrap_or_else(|_| "aws".into());
    if !works(&aws, &["--version"]) {
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED: {aws} is not there; install aws-cli or set EVENKEEL_AWS"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let ec2 = |args: &str| {
        let mut command = with_keys(&aws, &server);
        command.arg("ec2").args(args.split_whitespace()).args(["--output", "text"]);
        command.output().unwrap()
    };
    let done = |args: &str| {
        let output = ec2(args);
        assert!(output.status.success(), "{args}: {}", shown(&output));
        shown(&output).trim().to_owned()
    };
    let tags = "ResourceType=volume,Tags=[{Key=Name,Value=cli}]";
    let id = done(&format!(
        "create-volume --availability-zone local-1a --size 20 --volume-type io2 --iops 1000 \
         --tag-specifications {tags} --query VolumeId"
    ));
    assert_eq!(id.len(), "vol-0123456789abcdef0".len());
    let instance = done("describe-instances --query Reservations[].Instances[].InstanceId");
    done(&format!("wait volume-available --volume-ids {id}"));
    done(&format!("attach-volume --volume-id {id} --instance-id {instance} --device /dev/sdf"));
    let by = "--filters Name=tag:Name,Values=cli Name=attachment.status,Values=attached";
    let query = "--query Volumes[].[State,Iops,Size]";
    assert_eq!(done(&format!("describe-volumes {by} {query}")), "in-use\t1000\t20");
    done(&format!("modify-volume --volume-id {id} --iops 2000"));
    let query = "--query VolumesModifications[].[ModificationState,OriginalIops,TargetIops]";
    let modified = done(&format!("describe-volumes-modifications --volume-ids {id} {query}"));
    assert_eq!(modified, "completed\t1000\t2000");
    done(&format!("detach-volume --volume-id {id}"));
    done(&format!("delete-volume --volume-id {id}"));
    let gone = ec2(&format!("describe-volumes --volume-ids {id}"));
    assert!(!gone.status.success());
    assert!(shown(&gone).contains("InvalidVolume.NotFound"), "{}", shown(&gone));
}
