"""Build splits as IndexTables bundles them, from indexes made with tantivy."""

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import tantivy

MAGIC = struct.pack("<II", 403_881_646, 1)
# The types of tantivy's schema builder by the name of the type in `meta.json`.
_ADDERS = {
    "text": "add_text_field",
    "i64": "add_integer_field",
    "u64": "add_unsigned_field",
    "f64": "add_float_field",
    "bool": "add_boolean_field",
    "date": "add_date_field",
    "bytes": "add_bytes_field",
    "json_object": "add_json_field",
    "ip_addr": "add_ip_addr_field",
}
_SETTERS = {
    "text": "add_text",
    "i64": "add_integer",
    "u64": "add_unsigned",
    "f64": "add_float",
    "bool": "add_boolean",
    "date": "add_date",
    "bytes": "add_bytes",
    "json_object": "add_json",
    "ip_addr": "add_ip_addr",
}


def field(kind, **options):
    """A field as the writers of splits declare it: stored, and fast where that is possible."""
    if kind == "text":
        return kind, {"stored": True, "fast": True, "tokenizer_name": "raw", **options}
    if kind in ("bytes", "json_object"):
        return kind, {"stored": True, **options}
    return kind, {"stored": True, "fast": True, "indexed": True, **options}


def write_index(folder, fields, segments, delete=None):
    """Write an index: `fields` by name, a list of documents per segment, a query to delete by."""
    builder = tantivy.SchemaBuilder()
    for name, (kind, options) in fields.items():
        getattr(builder, _ADDERS[kind])(name, **options)
    schema = builder.build()
    index = tantivy.Index(schema, path=str(folder))
    for _, options in fields.values():
        name = options.get("tokenizer_name", "raw")
        if name not in ("raw", "default", "en_stem", "whitespace"):
            simple = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).build()
            index.register_tokenizer(name, simple)
    for documents in segments:
        # A writer per segment, closed before its merges start.
        writer = index.writer(heap_size=15_000_000, num_threads=1)
        for values in documents:
            document = tantivy.Document()
            for name, value in values.items():
                for item in value if isinstance(value, tuple) else (value,):
                    if item is not None:
                        getattr(document, _SETTERS[fields[name][0]])(name, item)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
    if delete is not None:
        writer = index.writer(heap_size=15_000_000, num_threads=1)
        writer.delete_documents_by_term(*delete)
        writer.commit()
        writer.wait_merging_threads()


def bundle(files, hotcache=b"hot"):
    """Join inner files, by name, to the bytes of a split."""
    body, directory = b"", {}
    for name, data in files.items():
        directory[name] = {"start": len(body), "end": len(body) + len(data)}
        body += data
    return seal(body, {"files": directory}, hotcache)


def seal(body, directory, hotcache=b"hot"):
    """Append a directory to the inner files."""
    meta = MAGIC + (directory if isinstance(directory, bytes) else json.dumps(directory).encode())
    return body + meta + struct.pack("<I", len(meta)) + hotcache + struct.pack("<I", len(hotcache))


def make_files(fields, segments, delete=None):
    """The inner files of a split, by name."""
    folder = tempfile.mkdtemp()
    try:
        write_index(folder, fields, segments, delete)
        live = {item["segment_id"].replace("-", "") for item in _meta(folder)["segments"]}
        files = {}
        for name in sorted(os.listdir(folder)):
            if name.partition(".")[0] in live or name in ("meta.json", ".managed.json"):
                files[name] = Path(folder, name).read_bytes()
        return files
    finally:
        shutil.rmtree(folder)


def _meta(folder):
    return json.loads(Path(folder, "meta.json").read_text())


def make_split(fields, segments, delete=None):
    """The bytes of a split with these documents."""
    return bundle(make_files(fields, segments, delete))
