//! Who is who to the API server: an authority of its own, the server, an administrator, the key of service accounts.

use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// Writes `ca.crt`, `server.{crt,key}`, `admin.{crt,key}` and `accounts.{key,pub}` to a folder.
pub(super) fn write(folder: &Path, server: IpAddr) -> Result<(), rcgen::Error> {
    let mut authority = named("warmpath tests", None);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let key = KeyPair::generate()?;
    save(folder, "ca.crt", &authority.self_signed(&key)?.pem());
    let issuer = Issuer::new(authority, key);

    let mut params = named("kube-apiserver", None);
    params.subject_alt_names = vec![SanType::IpAddress(server)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    issue(folder, "server", params, &issuer)?;

    // The group that may do anything, whatever RBAC says.
    let mut params = named("admin", Some("system:masters"));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    issue(folder, "admin", params, &issuer)?;

    let accounts = KeyPair::generate()?;
    save(folder, "accounts.key", &accounts.serialize_pem());
    save(folder, "accounts.pub", &accounts.public_key_pem());
    Ok(())
}

/// A subject; the API server reads the user from the common name and the group from the organisation.
fn named(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params
}

fn issue(
    folder: &Path,
    name: &str,
    mut params: CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(), rcgen::Error> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    save(
        folder,
        &format!("{name}.crt"),
        &params.signed_by(&key, issuer)?.pem(),
    );
    save(folder, &format!("{name}.key"), &key.serialize_pem());
    Ok(())
}

fn save(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("a temporary file");
}
