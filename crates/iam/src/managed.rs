//! The policies that are ready to be attached. Those that AWS has, too, have AWS's names.

/// A policy that the server has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Managed {
    /// Its path, which begins and ends with a slash.
    pub path: &'static str,
    /// Its name.
    pub name: &'static str,
    /// An id, which never changes.
    pub id: &'static str,
    /// The rights that it gives.
    pub description: &'static str,
    /// Its JSON.
    pub document: &'static str,
}

/// All of them, ordered by name.
pub const MANAGED: [Managed; 5] = [
    Managed {
        path: "/",
        name: "AdministratorAccess",
        id: "ANPAEVENKEELADMINISTR",
        description: "Allows every action, also those on users.",
        document: include_str!("../policies/administrator.json"),
    },
    Managed {
        path: "/service-role/",
        name: "AmazonEBSCSIDriverPolicy",
        id: "ANPAEVENKEELCSIDRIVER",
        description: "Allows the EBS CSI driver to manage the volumes and snapshots that it makes.",
        document: include_str!("../policies/csi_driver.json"),
    },
    Managed {
        path: "/",
        name: "EvenkeelBackup",
        id: "ANPAEVENKEELBACKUPCLI",
        description: "Allows to make, copy, read and fill snapshots, and to delete those with the \
                      tag backup.",
        document: include_str!("../policies/backup.json"),
    },
    Managed {
        path: "/",
        name: "EvenkeelOperator",
        id: "ANPAEVENKEELOPERATORS",
        description: "Allows everything on volumes, snapshots, hosts and nodes but to delete them.",
        document: include_str!("../policies/operator.json"),
    },
    Managed {
        path: "/",
        name: "ReadOnlyAccess",
        id: "ANPAEVENKEELREADONLYS",
        description: "Allows to list and describe everything, and to read no data of volumes.",
        document: include_str!("../policies/read_only.json"),
    },
];

impl Managed {
    /// Returns its name among all resources.
    #[must_use]
    pub fn arn(&self) -> String {
        let Self { path, name, .. } = self;
        format!("arn:aws:iam::aws:policy{path}{name}")
    }

    /// Returns the policy with this ARN.
    #[must_use]
    pub fn with_arn(arn: &str) -> Option<&'static Self> {
        MANAGED.iter().find(|managed| managed.arn() == arn)
    }
}
