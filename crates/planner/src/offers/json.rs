//! Reads offer files in JSON, and answers of GetProducts, in which each product is a text in JSON
//! as well.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Item, Offers, Row};
use crate::read::{Broken, json_broken};

const FORM: &str = "an offer file of AmazonEC2, or an answer of `aws pricing get-products`";

/// A product of an answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    product: Product,
    terms: Terms,
    publication_date: Option<String>,
}

#[derive(Deserialize)]
struct Product {
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attributes {
    #[serde(default)]
    usagetype: String,
    region_code: Option<String>,
}

#[derive(Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: BTreeMap<String, Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    effective_date: Option<String>,
    price_dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    unit: String,
    price_per_unit: BTreeMap<String, String>,
}

pub fn read(input: &mut dyn BufRead, offers: &mut Offers) -> Result<(), Broken> {
    let mut reading = Reading {
        offers,
        products: BTreeMap::new(),
        published: None,
        broken: None,
        is_page: false,
    };
    let mut deserializer = serde_json::Deserializer::from_reader(input);
    let read = deserializer.deserialize_any(&mut reading).and_then(|()| deserializer.end());
    if let Some(broken) = reading.broken {
        return Err(broken);
    }
    let is_page = reading.is_page;
    read.map_err(|error| json_broken(&error, FORM))?;
    if is_page {
        return Err(Broken::whole(
            "NextToken",
            "an answer with all pages; ask on with --starting-token",
        ));
    }
    Ok(())
}

/// The state of reading a text.
struct Reading<'a> {
    offers: &'a mut Offers,
    /// The products of volumes in an offer file, by SKU.
    products: BTreeMap<String, Attributes>,
    published: Option<String>,
    broken: Option<Broken>,
    is_page: bool,
}

impl Reading<'_> {
    fn add<E: Error>(
        &mut self,
        attributes: &Attributes,
        terms: &BTreeMap<String, Term>,
    ) -> Result<(), E> {
        for term in terms.values() {
            let date = term.effective_date.clone().or_else(|| self.published.clone());
            for (place, dimension) in &term.price_dimensions {
                // If a price is in several currencies, the one in US dollars is used.
                let usd = dimension.price_per_unit.get_key_value("USD");
                let price = usd.or_else(|| dimension.price_per_unit.first_key_value());
                let Some((currency, price)) = price else { continue };
                let row = Row {
                    place: place.clone(),
                    usage_type: attributes.usagetype.clone(),
                    region: attributes.region_code.clone(),
                    unit: dimension.unit.clone(),
                    price: price.clone(),
                    currency: currency.clone(),
                    date: date.clone().unwrap_or_default(),
                };
                if let Err(broken) = self.offers.add(row) {
                    self.broken = Some(broken);
                    return Err(E::custom("a price"));
                }
            }
        }
        Ok(())
    }

    fn answered<E: Error>(&mut self, answered: Answered) -> Result<(), E> {
        if answered.publication_date.is_some() {
            self.published = answered.publication_date;
        }
        self.add(&answered.product.attributes, &answered.terms.on_demand)
    }
}

/// Reads an offer file, an answer, or the list of products in an answer.
impl<'de> Visitor<'de> for &mut Reading<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORM)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "publicationDate" => self.published = map.next_value()?,
                "products" => map.next_value_seed(ProductsOf(self))?,
                "terms" => map.next_value_seed(TermsOf(self))?,
                "OnDemand" => map.next_value_seed(OnDemandOf(self))?,
                "PriceList" => map.next_value_seed(ListOf(self))?,
                "NextToken" => {
                    let token: Option<String> = map.next_value()?;
                    self.is_page = token.is_some_and(|token| !token.is_empty());
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element::<Listed>()? {
            let answered = match item {
                Listed::Text(text) => serde_json::from_str(&text).map_err(|error| {
                    self.broken = Some(json_broken(&error, FORM));
                    A::Error::custom("a product")
                })?,
                Listed::Product(answered) => *answered,
            };
            self.answered(answered)?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    Text(String),
    Product(Box<Answered>),
}

/// Reads the terms of an offer file. Only those on demand are used.
struct TermsOf<'a, 'b>(&'a mut Reading<'b>);

impl<'de> DeserializeSeed<'de> for TermsOf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

/// Reads the list of products in an answer.
struct ListOf<'a, 'b>(&'a mut Reading<'b>);

impl<'de> DeserializeSeed<'de> for ListOf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self.0)
    }
}

/// Reads the products of an offer file, and keeps those of volumes.
struct ProductsOf<'a, 'b>(&'a mut Reading<'b>);

impl<'de> DeserializeSeed<'de> for ProductsOf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ProductsOf<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("products by SKU")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((sku, product)) = map.next_entry::<String, Product>()? {
            if Item::of(&product.attributes.usagetype).is_some() {
                self.0.products.insert(sku, product.attributes);
            }
        }
        Ok(())
    }
}

/// Reads the prices on demand of an offer file, by SKU. They follow its products.
struct OnDemandOf<'a, 'b>(&'a mut Reading<'b>);

impl<'de> DeserializeSeed<'de> for OnDemandOf<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OnDemandOf<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("terms by SKU")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(sku) = map.next_key::<String>()? {
            match self.0.products.remove(&sku) {
                Some(attributes) => {
                    let terms: BTreeMap<String, Term> = map.next_value()?;
                    self.0.add(&attributes, &terms)?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}
