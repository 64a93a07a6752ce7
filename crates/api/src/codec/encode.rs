//! Typed objects to JSON, with the nulls and numbers that Kubernetes writes.
//!
//! In Go a time that is no pointer is written as null where it is not set (`lastProbeTime` of a condition), and so
//! is a list without omitempty (`rules` of a Role). The typed objects leave such fields out; here they are put back.
//! And `fieldsV1`, which typed objects have as text, is written as the object that it is.

use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
    Serializer,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::time;

/// Fields of a struct that are null where they are not set or are empty lists. Structs of different groups share
/// names (`Event`), so the type's path is asked too where that matters.
fn nulls(name: &str, path: &str) -> &'static [&'static str] {
    match name {
        "APIServiceCondition"
        | "Condition"
        | "CustomResourceDefinitionCondition"
        | "DaemonSetCondition"
        | "FlowSchemaCondition"
        | "HorizontalPodAutoscalerCondition"
        | "NamespaceCondition"
        | "PriorityLevelConfigurationCondition"
        | "ReplicaSetCondition"
        | "ReplicationControllerCondition"
        | "StatefulSetCondition" => &["lastTransitionTime"],
        "AllocatedDeviceStatus" => &["conditions"],
        "AzureFilePersistentVolumeSource" => &["secretNamespace"],
        "CertificateSigningRequestCondition" | "DeploymentCondition" => {
            &["lastUpdateTime", "lastTransitionTime"]
        }
        "ClusterRole" | "Role" => &["rules"],
        "ContainerImage" => &["names"],
        "ContainerStateRunning" => &["startedAt"],
        "ContainerStateTerminated" => &["startedAt", "finishedAt"],
        "CSINodeDriver" => &["topologyKeys"],
        "CSINodeSpec" => &["drivers"],
        "CustomResourceDefinitionStatus" => &["conditions", "storedVersions"],
        "DeviceClaim" => &["requests"],
        "EndpointSlice" => &["endpoints", "ports"],
        "Event" if path.contains("::events::") => {
            &["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"]
        }
        "Event" => &["eventTime", "firstTimestamp", "lastTimestamp"],
        "EventSeries" => &["lastObservedTime"],
        "HorizontalPodAutoscalerStatus" if path.contains("::v2::") => &["currentMetrics"],
        "JobCondition" | "PersistentVolumeClaimCondition" | "PodCondition" => {
            &["lastProbeTime", "lastTransitionTime"]
        }
        "LimitRangeSpec" => &["limits"],
        "NodeCondition" => &["lastHeartbeatTime", "lastTransitionTime"],
        "PodFailurePolicy" | "SuccessPolicy" => &["rules"],
        "ProjectedVolumeSource" => &["sources"],
        "ResourcePolicyRule" => &["namespaces"],
        "SubjectRulesReviewStatus" => &["resourceRules", "nonResourceRules"],
        "TypedLocalObjectReference" | "TypedObjectReference" => &["apiGroup"],
        "VolumeError" => &["time"],
        _ => &[],
    }
}

/// Up to here every whole number is a double's exact value: 2^53.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A value that is written with its nulls.
pub(crate) struct WithNulls<'a, T: ?Sized>(pub(crate) &'a T);

impl<T: Serialize + ?Sized> Serialize for WithNulls<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Writer(serializer, std::any::type_name::<T>()))
    }
}

/// Passes everything on to `S`, and itself into every value inside. Beside it the path of the type being written.
struct Writer<S>(S, &'static str);

/// A list, map or struct that is being written.
struct Compound<S> {
    inner: S,
    /// Fields that are still to be written, as null if nothing else comes.
    nulls: &'static [&'static str],
    written: u8,
}

macro_rules! pass_on {
    ($($method:ident($($arg:ident: $t:ty),*);)*) => {$(
        fn $method(self, $($arg: $t),*) -> Result<S::Ok, S::Error> {
            self.0.$method($($arg),*)
        }
    )*};
}

impl<S: Serializer> Serializer for Writer<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Compound<S::SerializeSeq>;
    type SerializeTuple = Compound<S::SerializeTuple>;
    type SerializeTupleStruct = Compound<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeMap = Compound<S::SerializeMap>;
    type SerializeStruct = Compound<S::SerializeStruct>;
    type SerializeStructVariant = Impossible<S::Ok, S::Error>;

    pass_on! {
        serialize_bool(v: bool);
        serialize_i8(v: i8);
        serialize_i16(v: i16);
        serialize_i32(v: i32);
        serialize_i64(v: i64);
        serialize_u8(v: u8);
        serialize_u16(v: u16);
        serialize_u32(v: u32);
        serialize_u64(v: u64);
        serialize_f32(v: f32);
        serialize_char(v: char);
        serialize_str(v: &str);
        serialize_bytes(v: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    /// Go writes a whole number as one, whatever its type.
    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        match v.fract() == 0.0 && v.abs() <= WHOLE_MAX {
            true => self.0.serialize_i64(v as i64),
            false => self.0.serialize_f64(v),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&WithNulls(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        match raw_fields(name, value) {
            Some(raw) => raw.serialize(self.0),
            None => self.0.serialize_newtype_struct(name, &WithNulls(value)),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &WithNulls(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(len).map(Compound::new)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(len).map(Compound::new)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, len).map(Compound::new)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        Err(no_variants(variant))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.0.serialize_map(len).map(Compound::new)
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        let nulls = nulls(name, self.1);
        Ok(Compound {
            nulls,
            // A struct of length zero would be closed at once.
            ..Compound::new(self.0.serialize_struct(name, len + nulls.len())?)
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        Err(no_variants(variant))
    }
}

/// The text of a `fieldsV1` (see `managed_fields::text`), to be written as the object that it is.
fn raw_fields<T: Serialize + ?Sized>(name: &str, value: &T) -> Option<Box<RawValue>> {
    if name != "FieldsV1" {
        return None;
    }
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => RawValue::from_string(text).ok(),
        _ => None,
    }
}

/// No type of Kubernetes is written as a variant with fields.
fn no_variants<E: serde::ser::Error>(variant: &str) -> E {
    E::custom(format!("unexpected variant {variant}"))
}

impl<S> Compound<S> {
    fn new(inner: S) -> Self {
        Compound {
            inner,
            nulls: &[],
            written: 0,
        }
    }
}

impl<S: SerializeStruct> SerializeStruct for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), S::Error> {
        if let Some(i) = self.nulls.iter().position(|field| *field == key) {
            if value.serialize(IsUnset::Field).is_ok() {
                return Ok(());
            }
            self.written |= 1 << i;
        }
        self.inner.serialize_field(key, &WithNulls(value))
    }

    fn end(mut self) -> Result<S::Ok, S::Error> {
        for (i, field) in self.nulls.iter().enumerate() {
            if self.written & (1 << i) == 0 {
                self.inner.serialize_field(field, &None::<()>)?;
            }
        }
        self.inner.end()
    }
}

impl<S: SerializeSeq> SerializeSeq for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_element(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTuple> SerializeTuple for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_element(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTupleStruct> SerializeTupleStruct for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_field(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeMap> SerializeMap for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.inner.serialize_key(key)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_value(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

/// Succeeds with what is an empty list or a time that is not set, and fails with all else, without looking further.
enum IsUnset {
    /// The field itself.
    Field,
    /// What an optional field has. A time that is not set is none there.
    Optional,
    /// The text of a time.
    Time,
}

#[derive(Debug)]
struct Other;

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("neither an empty list nor a time that is not set")
    }
}

impl std::error::Error for Other {}

impl serde::ser::Error for Other {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Other
    }
}

impl SerializeSeq for IsUnset {
    type Ok = ();
    type Error = Other;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Other> {
        Err(Other)
    }
    fn end(self) -> Result<(), Other> {
        Ok(())
    }
}

macro_rules! other {
    ($($method:ident($($t:ty),*);)*) => {$(
        fn $method(self, $(_: $t),*) -> Result<(), Other> {
            Err(Other)
        }
    )*};
}

impl Serializer for IsUnset {
    type Ok = ();
    type Error = Other;
    type SerializeSeq = Self;
    type SerializeTuple = Impossible<(), Other>;
    type SerializeTupleStruct = Impossible<(), Other>;
    type SerializeTupleVariant = Impossible<(), Other>;
    type SerializeMap = Impossible<(), Other>;
    type SerializeStruct = Impossible<(), Other>;
    type SerializeStructVariant = Impossible<(), Other>;

    other! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_str(self, text: &str) -> Result<(), Other> {
        match self {
            IsUnset::Time if time::is_zero(text) => Ok(()),
            _ => Err(Other),
        }
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Other> {
        value.serialize(IsUnset::Optional)
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Other> {
        match (self, name) {
            (IsUnset::Field, "Time" | "MicroTime") => value.serialize(IsUnset::Time),
            _ => Err(Other),
        }
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Other> {
        Err(Other)
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Other> {
        Ok(self)
    }
    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Other> {
        Err(Other)
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Other> {
        Err(Other)
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Other> {
        Err(Other)
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Other> {
        Err(Other)
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Other> {
        Err(Other)
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Other> {
        Err(Other)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerState, Pod};
    use k8s_openapi::api::rbac::v1::Role;
    use serde_json::json;

    use super::*;

    fn encoded<T: Serialize>(value: &T) -> Value {
        serde_json::from_str(&serde_json::to_string(&WithNulls(value)).unwrap()).unwrap()
    }

    #[test]
    fn empty_lists_and_the_fields_of_one_name_in_two_groups_are_null_as_their_kinds_have_it() {
        use k8s_openapi::api::{autoscaling, core, events, storage};
        assert_eq!(
            encoded(&storage::v1::CSINodeSpec::default()),
            json!({"drivers": null})
        );
        let hpa = autoscaling::v2::HorizontalPodAutoscalerStatus::default();
        assert!(
            encoded(&Some(hpa))
                .get("currentMetrics")
                .is_some_and(Value::is_null)
        );
        let hpa = autoscaling::v1::HorizontalPodAutoscalerStatus::default();
        assert_eq!(encoded(&hpa).get("currentMetrics"), None);
        let null = Some(&Value::Null);
        let old = encoded(&core::v1::Event::default());
        assert_eq!(
            (old.get("firstTimestamp"), old.get("deprecatedFirstTimestamp")),
            (null, None)
        );
        let new = encoded(&events::v1::Event::default());
        assert_eq!(
            (new.get("firstTimestamp"), new.get("deprecatedFirstTimestamp")),
            (None, null)
        );
    }

    #[test]
    fn times_that_are_not_set_are_null() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "status": {"conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
        let mut want = pod.clone();
        want["status"]["conditions"][0]["lastProbeTime"] = Value::Null;
        assert_eq!(encoded(&serde_json::from_value::<Pod>(pod).unwrap()), want);
        let state: ContainerState = serde_json::from_value(json!({"running": {}})).unwrap();
        assert_eq!(encoded(&state), json!({"running": {"startedAt": null}}));
    }

    #[test]
    fn a_role_without_rules_says_so() {
        assert_eq!(encoded(&Role::default())["rules"], Value::Null);
        assert!(
            encoded(&Role::default())
                .as_object()
                .unwrap()
                .contains_key("rules")
        );
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        let numbers = [1.0, -3.0, 0.5, 9_007_199_254_740_992.0, 1e300, 0.0];
        let written = serde_json::to_string(&WithNulls(&numbers)).unwrap();
        assert_eq!(written, "[1,-3,0.5,9007199254740992,1e+300,0]");
    }
}
