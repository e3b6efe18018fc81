//! Blocks of Terraform for the resources `aws_ebs_volume` and `aws_volume_attachment`.

use crate::layout::Layout;
use evenkeel_core::volume::VolumeSpec;

/// Names that EC2 recommends for devices: `/dev/sdf` to `/dev/sdp`.
const DEVICES: &str = "fghijklmnop";

/// Returns the blocks of a layout's volumes and their attachments to an instance.
pub fn created(layout: &Layout) -> String {
    let volumes = layout.volumes;
    let count = if volumes > 1 { format!("  count = {volumes}\n") } else { String::new() };
    let index = if volumes > 1 { "[count.index]" } else { "" };
    let mut text = String::from(VARIABLES);
    text += &format!(
        "\nresource \"aws_ebs_volume\" \"plan\" {{\n{count}  availability_zone = \
         var.availability_zone\n{}}}\n",
        properties(&layout.each)
    );
    let device = match usize::try_from(volumes) {
        Ok(1) => "/dev/sdf".to_owned(),
        Ok(many) if many <= DEVICES.len() => {
            format!("/dev/sd${{substr(\"{DEVICES}\", count.index, 1)}}")
        }
        // There are fewer recommended names than volumes: these have two letters.
        _ => format!(
            "/dev/xvd${{substr(\"bcdefg\", floor(count.index / 26), 1)}}\
             ${{substr(\"{ALPHABET}\", count.index % 26, 1)}}"
        ),
    };
    text += &format!(
        "\nresource \"aws_volume_attachment\" \"plan\" {{\n{count}  device_name = \"{device}\"\n  \
         volume_id   = aws_ebs_volume.plan{index}.id\n  instance_id = var.instance_id\n}}\n"
    );
    text
}

const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyz";

const VARIABLES: &str = "variable \"availability_zone\" {\n  type = string\n}\n\n\
                         variable \"instance_id\" {\n  type = string\n}\n";

/// Returns the block of the recorded volume after its change.
pub fn modified(id: &str, each: &VolumeSpec) -> String {
    format!(
        "# Once, so that Terraform changes the volume and makes no other:\n# terraform import \
         aws_ebs_volume.plan {id}\nvariable \"availability_zone\" {{\n  type = string\n}}\n\n\
         resource \"aws_ebs_volume\" \"plan\" {{\n  availability_zone = \
         var.availability_zone\n{}}}\n",
        properties(each)
    )
}

fn properties(each: &VolumeSpec) -> String {
    let request = each.request();
    let mut text = format!(
        "  type              = \"{}\"\n  size              = {}\n",
        request.volume_type, request.size_gib
    );
    if let Some(iops) = request.iops {
        text += &format!("  iops              = {iops}\n");
    }
    if let Some(mibps) = request.throughput_mibps {
        text += &format!("  throughput        = {mibps}\n");
    }
    if request.multi_attach {
        text += "  multi_attach_enabled = true\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout_text::parse;
    use evenkeel_core::volume::Rules;

    fn block(words: &str) -> String {
        created(&parse(words, Rules::newest()).expect("a layout"))
    }

    #[test]
    fn a_block_names_what_is_provisioned_and_nothing_else() {
        let text = block("2 x gp3 100 GiB, 4000 IOPS, 250 MiB/s");
        for part in [
            "count = 2\n",
            "  type              = \"gp3\"\n",
            "  iops              = 4000\n",
            "  throughput        = 250\n",
            "volume_id   = aws_ebs_volume.plan[count.index].id",
            "\"/dev/sd${substr(\"fghijklmnop\", count.index, 1)}\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = block("gp2 100");
        assert!(!text.contains("iops") && !text.contains("count"));
        assert!(block("12 x gp3 10").contains("/dev/xvd${substr("));
        assert!(
            block("io2 10 GiB, 100 IOPS, Multi-Attach").contains("multi_attach_enabled = true")
        );
        for text in [block("gp3 1"), block("40 x gp3 1"), block("st1 125")] {
            assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
        }
    }
}
