#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the fields that other writers put into quantization_config, and compares them with fields.json.

    python writers.py --packages             # those that pip finds; a test of the long tier (SLUICE_FULL)
    python writers.py FOLDER [--write]

FOLDER holds the packages' folders (compressed_tensors, modelopt, auto_round, transformers, gptqmodel): unzipped
wheels, site-packages, or for GPTQModel, which has no wheels, its repository. llmcompressor is none of them: it fills in
the classes of compressed_tensors. Nothing of them runs: their sources are parsed. --write adds what is new to
fields.json, with neither `takes` nor `refuses`; writers_test.cpp of tests/engine/weights fails until a person has
filled them in. Without --write, exit code 1 says that a field is missing in fields.json. A package that is not there is
skipped and named.

fields.json: for each writer's class `base`, a configuration that is read, `at`, the JSON pointer of the object in it
that has the fields, and for each field `takes`, values that are read there, and `refuses`, values that are refused by
the field's name. A field without `refuses` changes nothing at any value.
"""
import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "fields.json"
PACKAGES = ("compressed-tensors", "nvidia-modelopt", "auto-round", "transformers")
SKIPPED = 77


def classes(path):
    tree = ast.parse(path.read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def constants(path):
    """The module's NAME = "text" lines."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def annotated(path, name):
    """Fields of a dataclass or a pydantic model."""
    return {node.target.id for node in classes(path)[name].body
            if isinstance(node, ast.AnnAssign) and node.target.id != "model_config"}


def own(path, name):
    """Names that methods of a class set: self.name = ..."""
    found = set()
    for node in ast.walk(classes(path)[name]):
        targets = node.targets if isinstance(node, ast.Assign) else []
        found |= {t.attr for t in targets
                  if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self"}
    return found


def text_of(node, names):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return names.get(node.id) if isinstance(node, ast.Name) else None


def keys(nodes, names, dictionaries):
    """Keys of dictionaries that are assigned to, or written into, one of the given names."""
    found = set()
    for node in nodes:
        for each in ast.walk(node):
            if not isinstance(each, (ast.Assign, ast.AnnAssign)):
                continue
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                if isinstance(target, ast.Name) and target.id in dictionaries and isinstance(each.value, ast.Dict):
                    found |= {text_of(key, names) for key in each.value.keys if key is not None}
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    if target.value.id in dictionaries:
                        found.add(text_of(target.slice, names))
    return found - {None}


def functions(path, wanted):
    return [node for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and node.name in wanted]


def of_compressed_tensors(root):
    quantization = root / "quantization"
    names = constants(root / "base.py")
    writer = root / "compressors/model_compressors/model_compressor.py"
    added = {value for key, value in names.items() if key.endswith("_NAME") and key != "QUANTIZATION_CONFIG_NAME"}
    if not writer.exists():
        added = set()
    return {"compressed-tensors: QuantizationConfig": annotated(quantization / "quant_config.py", "QuantizationConfig")
            | added,
            "compressed-tensors: QuantizationScheme": annotated(quantization / "quant_scheme.py", "QuantizationScheme"),
            "compressed-tensors: QuantizationArgs": annotated(quantization / "quant_args.py", "QuantizationArgs")}


def of_modelopt(root):
    export = root / "torch/export"
    per_layer = functions(export / "quant_utils.py", {"process_layer_quant_config", "get_quant_config"})
    flat = functions(export / "convert_hf_config.py", {"convert_hf_quant_config_format"})
    return {"modelopt: hf_quant_config.json": keys(per_layer, {}, {"per_layer_config", "default_quantization"})
            | {"exclude_modules"},
            "modelopt: a layer": keys(per_layer, {}, {"layer_config"}),
            "modelopt: config.json": keys(flat, {}, {"new_config"})}


def of_gptqmodel(root):
    path = root / "quantization/config.py"
    names = constants(path)
    made = classes(path)
    common = keys([made["BaseQuantizeConfig"]], names, {"out"})
    return {f"gptqmodel: {name}": common | keys([made[name]], names, {"out"}) for name in ("GPTQConfig", "AWQConfig")}


def of_auto_round(root):
    export = root / "export"
    common = annotated(root / "compressors/base.py", "SerializedCompressorConfig") - {"regex_config"}
    found = {}
    for name, folder in (("awq", "awq"), ("gptq", "autogptq"), ("auto-round", "autoround")):
        source = ast.parse((export / f"export_to_{folder}/export.py").read_text())
        found[f"auto-round: {name}"] = common | keys([source], {}, {"quantization_config"})
    return found


def of_transformers(root):
    path = root / "utils/quantization_config.py"
    gptq = own(path, "GPTQConfig")
    found = {"GPTQConfig": gptq | {"checkpoint_format"},
             "AwqConfig": gptq | own(path, "AwqConfig") | {"version"},
             "FineGrainedFP8Config": own(path, "FineGrainedFP8Config"),
             "Mxfp4Config": own(path, "Mxfp4Config") | {"quant_method"},
             "AutoRoundConfig": own(path, "AutoRoundConfig")}
    return {f"transformers: {name}": fields for name, fields in found.items()}


WRITERS = {"compressed_tensors": of_compressed_tensors, "modelopt": of_modelopt, "gptqmodel": of_gptqmodel,
           "auto_round": of_auto_round, "transformers": of_transformers}


def fetch(folder):
    """Unzips the packages' wheels as pip finds them; their dependencies are not needed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    for package in PACKAGES:
        if subprocess.run([*pip, "--only-binary", ":all:", "--dest", folder, package], check=False).returncode != 0:
            print(f"{package}: pip does not find it")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    return any(folder.glob("*.whl"))


def text_of_table(table):
    """One line a field, so that a difference shows what a package's new version brought."""
    rows = []
    for name, row in table.items():
        fields = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row['fields'][key])}" for key in sorted(row["fields"]))
        head = f'"base": {json.dumps(row["base"])}, "at": {json.dumps(row["at"])}'
        rows.append(f" {json.dumps(name)}: {{{head}, \"fields\": {{\n{fields}\n }}}}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main():
    if sys.argv[1:] != ["--packages"]:
        return compare(pathlib.Path(sys.argv[1]))
    if not os.environ.get("SLUICE_FULL"):
        print("SLUICE_FULL is not set")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return compare(folder) if fetch(folder) else SKIPPED


def compare(folder):
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    missing = 0
    for package, read in WRITERS.items():
        if not (folder / package).is_dir():
            print(f"{package}: not in {folder}")
            continue
        for name, fields in read(folder / package).items():
            known = table.setdefault(name, {"base": {}, "at": "", "fields": {}})["fields"]
            new = sorted(fields - known.keys())
            missing += len(new)
            print(f"{name}: {len(fields)} fields" + (f", new: {', '.join(new)}" if new else ""))
            known |= {field: {} for field in new}
    if "--write" in sys.argv:
        TABLE.write_text(text_of_table(table))
    return 1 if missing and "--write" not in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
