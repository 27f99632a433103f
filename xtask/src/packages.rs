//! The workspace's packages and their features, as cargo knows them.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::{cargo, output};

/// A member of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Without `default`, which is not a feature of its own.
    pub(crate) features: Vec<String>,
    pub(crate) has_library: bool,
}

impl Package {
    /// The arguments that select this package with no feature, and with each of its features alone.
    pub(crate) fn alone(&self) -> Vec<String> {
        let none = format!("--package {} --no-default-features", self.name);
        let each = self.features.iter().map(|feature| format!("{none} --features {feature}"));
        std::iter::once(none.clone()).chain(each).collect()
    }
}

/// All members, in alphabetical order.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let metadata = output(&mut cargo("metadata --no-deps --format-version 1"))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let mut packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists packages")?
        .iter()
        .map(read)
        .collect::<Result<Vec<_>>>()?;
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(packages)
}

fn read(package: &Value) -> Result<Package> {
    let name = package["name"].as_str().context("a package has a name")?.to_owned();
    let features = package["features"].as_object().context("a package lists its features")?;
    let features = features.keys().filter(|feature| *feature != "default").cloned().collect();
    let targets = package["targets"].as_array().context("a package lists its targets")?;
    let has_library = targets.iter().any(|target| target["kind"][0] == "lib");
    Ok(Package { name, features, has_library })
}
