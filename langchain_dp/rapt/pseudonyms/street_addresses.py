"""Pattern of postal addresses, in linear time."""

from __future__ import annotations

_CAPITAL = r"[^\W\d_a-z\xdf-\xf6\xf8-\xff]"
_WORD = rf"(?:(?:{_CAPITAL}\w{{0,2}}\.){{1,3}}(?=[ ]?\w)|{_CAPITAL}[\w'-]{{0,30}}+)"
_PARTICLE = r"(?:de|del|della|di|da|do|das|dos|du|des|la|le|les|l'|van|von|der|den|zu|am|an|im|nad|of|the|and)"
_NAME = rf"{_WORD}(?:[ ](?:{_PARTICLE}[ ]){{0,2}}{_WORD}){{0,3}}"
_HOUSE = r"\d{1,5}(?:[-/]\d{1,5})?[A-Za-z]?\b"
_ENGLISH = (
    r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Drive|Dr|Way|Court|Ct|Boulevard|Blvd|Place|Pl|Square|Sq|Terrace|Parkway|"
    r"Pkwy|Highway|Hwy|Circle|Cir|Close|Crescent|Row|Walk|Alley|Trail|Grove|Gardens|Mews|Hill|Quay|STREET|ST|AVENUE|AVE|"
    r"ROAD|RD|LANE|DRIVE|WAY|COURT|BOULEVARD|PLACE|SQUARE)\b\.?"
)
_FIRST = (
    r"(?:[Rr]ue|[Vv]ia|[Vv]iale|[Cc]orso|[Pp]iazza|[Cc]alle|[Aa]venida|[Aa]venue|[Rr]ua|[Rr]úa|[Tt]ravessa|[Ll]argo|"
    r"[Pp]laza|[Cc]arrer|[Cc]amino|[Pp]aseo|[Uu]lica|[Uu]l\.|[Uu]l|[Cc]hemin|[Aa]llée|[Qq]uai|[Ii]mpasse|[Rr]oute|"
    r"[Bb]oulevard|[Ss]trada|[Vv]icolo)"
)
_LAST = (
    r"(?:stra(?:ß|ss)e|str\.|gasse|platz|allee|weg|gat(?:a|an|e)|vägen|väg|vej|gade|vei|veien|vegen|bakken|katu|straat|laan|"
    r"plein|kade|dreef|utca|ulice)"
)
_UNIT = r"(?i:Apartment|Apt\.?|Suite|Ste\.?|Unit|Flat)[ ]#?\d{1,5}[A-Za-z]?\b"
_GAP = r"(?:,?\s{1,3}|,)"  # between parts, in one line or several
_TOWN_GAP = r"(?:,?\s{1,4},?\s?|,)"
_ZIP = r"\d{4,5}(?:-\d{4})?(?![ -]?\d)"
_STATES = (
    r"(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]|"
    r"W[AIVY])"
)
_POSTCODE = r"(?:[A-Z]{1,2}\d[A-Z\d]?[ ]\d[A-Z]{2}|[A-Z]\d[A-Z][ ]\d[A-Z]\d)\b"  # British, Canadian
_BOX = (
    r"(?:(?:\d{1,5}[ ])?(?i:P\.?[ ]?O\.?[ ]?Box)[ ]\d{1,6}|(?:PSC|CMR|Unit)[ ]\d{1,5},?[ ]Box[ ]\d{1,5}"
    rf"|US[A-Z]{{1,4}}[ ]{_WORD}(?=\s[AFD]PO))"
)
_STREET = (
    rf"(?:\d{{1,5}}[ ])?(?:{_HOUSE}(?:[ ](?:{_WORD}|\d{{1,4}}(?:st|nd|rd|th)?\b)){{1,5}}?[ ]{_ENGLISH}(?:[ ][NSEW]\b)?"
    rf"|{_FIRST}(?:[ ](?:{_PARTICLE}|{_WORD})){{1,5}}?,?[ ]{_HOUSE}"
    rf"|{_HOUSE},?[ ]{_FIRST}(?:[ ](?:{_PARTICLE}[ ]){{0,3}}{_WORD}){{1,3}}"
    rf"|{_CAPITAL}\w{{1,30}}?{_LAST}[ ]{_HOUSE}|(?:{_WORD}[ ]){{1,3}}?(?i:{_LAST})[ ]{_HOUSE})"
)
_BEFORE_UNIT = rf"\d{{1,5}}(?:[ ](?:{_PARTICLE}|{_WORD}|\d{{1,5}}\b)){{1,7}}?(?={_GAP}{_UNIT})"
_WITH_ZIP = rf"(?:{_TOWN_GAP}{_NAME}){{1,3}}(?:{_TOWN_GAP}[A-Z]{{2}}\b)?{_TOWN_GAP}{_ZIP}"
_TOWN = (
    rf"(?:{_TOWN_GAP}[AFD]PO,?[ ]A[AEP][ ]\d{{5}}"
    rf"|(?:{_TOWN_GAP}{_NAME}){{0,2}}{_TOWN_GAP}{_POSTCODE}"
    rf"|{_WITH_ZIP}"
    rf"|{_GAP}(?:[A-Z]{{1,2}}-)?\d{{4,5}}[ ]{_NAME}"
    rf"|{_TOWN_GAP}{_NAME}{_TOWN_GAP}[A-Z]{{2}}\b"
    rf"|(?:,\s{{0,2}}{_NAME}){{1,2}})"
)
_AFTER_UNIT = rf"(?:{_GAP}{_UNIT})?(?:{_TOWN}|(?:\s{{1,3}}{_NAME}(?![\w ]*:)){{1,2}})?"
ADDRESS = (
    rf"(?:{_BOX}|{_BEFORE_UNIT}|{_STREET}|(?:\d{{1,5}}[ ])?{_NAME}[ ]{_HOUSE}(?={_WITH_ZIP}))"
    rf"(?:{_GAP}{_UNIT}{_AFTER_UNIT}|{_TOWN})?|{_UNIT}{_AFTER_UNIT}"
    rf"|[AFD]PO,?[ ]A[AEP][ ]\d{{5}}|{_STATES}[ ]\d{{5}}(?:-\d{{4}})?(?!\d)|{_POSTCODE}"
)
