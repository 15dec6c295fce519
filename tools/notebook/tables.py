"""Replacements for CSV files that notebooks download: the original columns, with learnable values."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

Table = dict[str, Any]
_ROWS_OF_CLIMATE: Final = 30_000


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _creditcard() -> Table:
    rng, count = _rng(), 20_000
    fraud = rng.random(count) < 0.02
    features = {f"V{n}": rng.normal(0, 1, count) - 2 * fraud * (n % 3) for n in range(1, 29)}
    amount = np.round(rng.exponential(80, count), 2)
    return {"Time": np.arange(count) * 8.0, **features, "Amount": amount, "Class": fraud.astype(int)}


def _titanic() -> Table:
    rng, count = _rng(), 627
    female = rng.random(count) < 0.35
    survived = (rng.random(count) < np.where(female, 0.75, 0.2)).astype(int)
    return {
        "survived": survived,
        "sex": np.where(female, "female", "male"),
        "age": np.round(rng.uniform(1, 70, count), 1),
        "n_siblings_spouses": rng.integers(0, 4, count),
        "parch": rng.integers(0, 3, count),
        "fare": np.round(rng.exponential(30, count), 4),
        "class": rng.choice(["First", "Second", "Third"], count),
        "deck": rng.choice(["unknown", *"ABCDEFG"], count),
        "embark_town": rng.choice(["Southampton", "Cherbourg", "Queenstown", "unknown"], count),
        "alone": rng.choice(["y", "n"], count),
    }


def _abalone() -> Table:
    rng, count = _rng(), 3320
    length = rng.uniform(0.1, 0.8, count)
    sizes = [np.round(length * factor + rng.normal(0, 0.01, count), 4) for factor in (1, 0.8, 0.3, 1.6, 0.7, 0.3, 0.5)]
    return {str(n): one for n, one in enumerate([*sizes, (3 + 15 * length).astype(int)])}


def _heart() -> Table:
    rng, count = _rng(), 303
    target = (rng.random(count) < 0.3).astype(int)
    return {
        "age": rng.integers(29, 78, count) + 3 * target,
        "sex": rng.integers(0, 2, count),
        "cp": rng.integers(0, 5, count),
        "trestbps": rng.integers(94, 201, count),
        "chol": rng.integers(126, 410, count),
        "fbs": rng.integers(0, 2, count),
        "restecg": rng.integers(0, 3, count),
        "thalach": rng.integers(71, 203, count) - 15 * target,
        "exang": rng.integers(0, 2, count),
        "oldpeak": np.round(rng.uniform(0, 6, count), 1),
        "slope": rng.integers(1, 4, count),
        "ca": rng.integers(0, 4, count),
        "thal": rng.choice(["normal", "fixed", "reversible"], count),
        "target": target,
    }


def _higgs() -> Table:
    rng, count = _rng(), 12_000
    signal = rng.random(count) < 0.5
    features = {f"f{n}": np.round(rng.normal(0, 1, count) + 0.3 * signal * (n % 4), 4) for n in range(28)}
    return {"signal": signal.astype(float), **features}


def _times(count: int, minutes: int, form: str) -> list[str]:
    start = datetime.datetime(2009, 1, 1, 0, 10)
    return [(start + datetime.timedelta(minutes=minutes * n)).strftime(form) for n in range(count)]


def _climate() -> Table:
    rng, count = _rng(), _ROWS_OF_CLIMATE
    hours = np.arange(count) / 6
    warm = 9 + 8 * np.sin(hours * 2 * np.pi / 24) + 5 * np.sin(hours * 2 * np.pi / 8766) + rng.normal(0, 0.3, count)
    names = {"p (mbar)": 989.0, "Tpot (K)": 283.0, "Tdew (degC)": 4.0, "rh (%)": 76.0, "VPmax (mbar)": 13.0,
             "VPact (mbar)": 9.0, "VPdef (mbar)": 4.0, "sh (g/kg)": 6.0, "H2OC (mmol/mol)": 9.0,
             "rho (g/m**3)": 1216.0}  # fmt: skip
    columns = {name: np.round(mean + warm - 9, 2) for name, mean in names.items()}
    wind = rng.exponential(2, count).round(2)
    ordered = {"p (mbar)": columns.pop("p (mbar)"), "T (degC)": warm.round(2), **columns}
    return {
        "Date Time": _times(count, 10, "%d.%m.%Y %H:%M:%S"),
        **ordered,
        "wv (m/s)": np.where(np.arange(count) % 9999 == 5, -9999.0, wind),  # as in the original
        "max. wv (m/s)": np.where(np.arange(count) % 9999 == 5, -9999.0, wind * 2),
        "wd (deg)": rng.uniform(0, 360, count).round(1),
    }


def _traffic() -> Table:
    rng, count = _rng(), 3000
    return {
        "holiday": np.full(count, "None"),
        "temp": rng.uniform(250, 310, count).round(2),
        "rain_1h": rng.exponential(0.1, count).round(2),
        "snow_1h": np.zeros(count),
        "clouds_all": rng.integers(0, 100, count),
        "weather_main": rng.choice(["Clouds", "Clear", "Rain"], count),
        "weather_description": rng.choice(["scattered clouds", "sky is clear", "light rain"], count),
        "date_time": _times(count, 60, "%Y-%m-%d %H:%M:%S"),
        "traffic_volume": rng.integers(0, 7000, count),
    }


def _font(name: str) -> Table:
    rng, count = np.random.default_rng(len(name)), 60
    head = {"font": np.full(count, name), "fontVariant": np.full(count, "scanned")}
    numbers = {key: rng.integers(0, 60, count) for key in ("m_label", "strength", "italic", "orientation", "m_top",
                                                            "m_left", "originalH", "originalW", "h", "w")}  # fmt: skip
    numbers["strength"] = np.round(numbers["strength"] / 60, 2)
    return {**head, **numbers, **{f"r{row}c{column}": rng.integers(0, 256, count) for row in range(20)
                                  for column in range(20)}}  # fmt: skip


_MAKERS: Final[dict[str, tuple[Callable[[], Table], bool]]] = {  # part of the name -> maker, whether it has a header
    "creditcard": (_creditcard, True),
    "titanic/train": (_titanic, True),
    "abalone": (_abalone, False),
    "HIGGS": (_higgs, False),
    "heart": (_heart, True),
    "jena_climate": (_climate, True),
    "Traffic_Volume": (_traffic, True),
}
_FONTS: Final = ("AGENCY", "ARIAL", "BAITI", "CALIBRI", "COMIC", "COURIER", "GARAMOND", "GEORGIA", "TIMES", "VERDANA")


def csv_text(source: str) -> str | None:
    """Returns the text of a CSV file; None if there is no replacement.

    Args:
        source: The URL in the notebook.
    """
    found = next((made for part, made in _MAKERS.items() if part in source), None)
    return None if found is None else _text(found[0](), header=found[1])


def _text(table: Table, *, header: bool = True) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if header:
        writer.writerow(table)
    writer.writerows(zip(*(np.asarray(column).tolist() for column in table.values()), strict=True))
    return buffer.getvalue()


def write_download(target: Path, source: str, *, extract: bool) -> bool:
    """Writes a replacement for a download; returns False if there is none.

    Args:
        target: The path of the download.
        source: The URL in the notebook.
        extract: Whether to unpack an archive next to it.
    """
    if target.name == "fonts.zip":
        members = {f"{name}.csv": _text(_font(name)) for name in _FONTS}
    else:
        text = csv_text(f"{source} {target.name}")
        if text is None:
            return False
        members = {target.name.removesuffix(".zip").removesuffix(".gz").removesuffix(".csv") + ".csv": text}
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
            if extract:
                archive.extractall(target.parent)
    else:
        data = next(iter(members.values())).encode()
        target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
    return True
