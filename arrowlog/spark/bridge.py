"""What has to happen inside Java: Spark's index of a table, and work on many files in one call.

A call between Python and Java takes a tenth of a millisecond or more, and Spark asks an index
often. So the index is a Java object that asks Python only which files to read; and the lines below
do in one call what would take several for each file. Spark brings the compiler that it compiles its
own queries with.
"""

from __future__ import annotations

import struct
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SOURCE = """
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

public class ArrowlogFileIndex implements FileIndex {
  private static final long BLOCK = 134217728L;
  private final BiFunction python;
  private final String identity;
  private final Seq roots;
  private final StructType partitionSchema;
  private final long size;
  private volatile Seq everything;

  public ArrowlogFileIndex(
      BiFunction python, String identity, Seq roots, StructType partitionSchema, long size) {
    this.python = python;
    this.identity = identity;
    this.roots = roots;
    this.partitionSchema = partitionSchema;
    this.size = size;
  }

  public static Object make(
      Object python, Object identity, Object roots, Object partitionSchema, Object size) {
    return new ArrowlogFileIndex((BiFunction) python, (String) identity, (Seq) roots,
        (StructType) partitionSchema, Long.parseLong((String) size));
  }

  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    if (!partitionFilters.isEmpty() || !dataFilters.isEmpty()) {
      return (Seq) python.apply(partitionFilters, dataFilters);
    }
    if (everything == null) {
      everything = (Seq) python.apply(partitionFilters, dataFilters);
    }
    return everything;
  }

  public String[] inputFiles() {
    scala.collection.immutable.Nil$ none = scala.collection.immutable.Nil$.MODULE$;
    Seq directories = listFiles((Seq) none, (Seq) none);
    List found = new ArrayList();
    for (int i = 0; i < directories.size(); i++) {
      Seq files = ((PartitionDirectory) directories.apply(i)).files();
      for (int j = 0; j < files.size(); j++) {
        found.add(((FileStatusWithMetadata) files.apply(j)).getPath().toUri().toString());
      }
    }
    String[] texts = new String[found.size()];
    for (int i = 0; i < texts.length; i++) {
      texts[i] = (String) found.get(i);
    }
    return texts;
  }

  public Seq rootPaths() { return roots; }

  public void refresh() {}

  public long sizeInBytes() { return size; }

  public StructType partitionSchema() { return partitionSchema; }

  public String toString() { return identity; }

  public int hashCode() { return identity.hashCode(); }

  public boolean equals(Object other) {
    return other instanceof ArrowlogFileIndex
        && ((ArrowlogFileIndex) other).identity.equals(identity);
  }

  // Which rows a condition on the attributes is true for, a byte each.
  public static byte[] passing(Object condition, Object attributes, Object[] rows) {
    BasePredicate test = Predicate$.MODULE$.create((Expression) condition, (Seq) attributes);
    test.initialize(0);
    byte[] passed = new byte[rows.length];
    for (int i = 0; i < rows.length; i++) {
      passed[i] = (byte) (test.eval((InternalRow) rows[i]) ? 1 : 0);
    }
    return passed;
  }

  // Files by partition: for each the number of its row and of its files, then path, size and time.
  public static List directories(Object[] rows, byte[] data) throws java.io.IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(data));
    int partitions = in.readInt();
    List made = new ArrayList(partitions);
    for (int i = 0; i < partitions; i++) {
      InternalRow row = (InternalRow) rows[in.readInt()];
      FileStatus[] files = new FileStatus[in.readInt()];
      for (int j = 0; j < files.length; j++) {
        byte[] name = new byte[in.readInt()];
        in.readFully(name);
        long size = in.readLong();
        long modified = in.readLong();
        Path path = new Path(new String(name, "UTF-8"));
        files[j] = new FileStatus(size, false, 1, BLOCK, modified, path);
      }
      made.add(PartitionDirectory.apply(row, files));
    }
    return made;
  }

  public static Object format(Object floats) { return new ArrowlogParquetFormat((List) floats); }

  // How many filters of a list the format would hand on to the Parquet reader.
  public static Object handedOn(Object format, Object filters) {
    return Integer.valueOf(((ArrowlogParquetFormat) format).without((Seq) filters).size());
  }
}

// Spark's Parquet reader without filters on the given columns. The reader function is built by a
// plain ParquetFileFormat, because tasks deserialize it and do not know this class.
class ArrowlogParquetFormat extends ParquetFileFormat {
  private final List floats;

  ArrowlogParquetFormat(List floats) { this.floats = floats; }

  public scala.Function1 buildReaderWithPartitionValues(
      SparkSession session, StructType data, StructType partition, StructType required,
      Seq filters, scala.collection.immutable.Map options, Configuration conf) {
    return new ParquetFileFormat().buildReaderWithPartitionValues(
        session, data, partition, required, without(filters), options, conf);
  }

  Seq without(Seq filters) {
    List kept = new ArrayList();
    for (int i = 0; i < filters.size(); i++) {
      Filter filter = (Filter) filters.apply(i);
      if (!mentions(filter)) {
        kept.add(filter);
      }
    }
    return scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq();
  }

  private boolean mentions(Filter filter) {
    String[][] references = filter.v2references();
    for (int i = 0; i < references.length; i++) {
      for (int j = 0; j < floats.size(); j++) {
        if (references[i][0].equalsIgnoreCase((String) floats.get(j))) {
          return true;
        }
      }
    }
    return false;
  }
}
"""
_LOCK = Lock()
_MADE: dict[int, Any] = {}  # by gateway: there is one a Java


class Bridge:
    """The compiled lines, to be called from Python."""

    def __init__(self, spark: Any) -> None:
        """Compile them."""
        jvm = spark._jvm  # noqa: SLF001 -- there is no public way into Java
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler.setParentClassLoader(loader)
        compiler.cook(_SOURCE)
        made = compiler.getClassLoader().loadClass("ArrowlogFileIndex")
        self._methods = {method.getName(): method for method in made.getMethods()}
        self.gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
        self._jvm = jvm

    def _call(self, name: str, *args: Any) -> Any:
        given = self._jvm.java.util.ArrayList()
        for arg in args:
            given.add(arg)
        return self._methods[name].invoke(None, given.toArray())

    def index(
        self, listing: Any, identity: str, roots: Any, partition_schema: Any, size: int
    ) -> Any:
        """Spark's index of a table; `listing` is asked for files, and everything else is known.

        Spark compares indexes often; that must not take a call to Python each time.
        """
        return self._call("make", listing, identity, roots, partition_schema, str(size))

    def passing(self, condition: Any, attributes: Any, rows: Any) -> bytes:
        """For which rows a condition is true: a byte each, 0 or 1."""
        return bytes(self._call("passing", condition, attributes, rows))

    def parquet_format(self, floats: Sequence[str]) -> Any:
        """Spark's Parquet format that pushes no filter on these columns into the Parquet reader."""
        names = self._jvm.java.util.ArrayList()
        for name in floats:
            names.add(name)
        return self._call("format", names)

    def pushed_count(self, parquet_format: Any, filters: Any) -> int:
        """How many of some filters such a format pushes into the Parquet reader."""
        return int(self._call("handedOn", parquet_format, filters))

    def directories(self, rows: Any, files: Sequence[Directory]) -> Any:
        """Spark's `PartitionDirectory` for each partition, as a list of Java's."""
        return self._call("directories", rows, encoded(files))


Directory = tuple[int, "Iterable[tuple[str, int, int]]"]


def bridge(spark: Any) -> Bridge:
    """The bridge into the Java of a session, compiled once."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- as above
    with _LOCK:
        found = _MADE.get(id(gateway))
        if found is None or found.gateway is not gateway:
            found = _MADE[id(gateway)] = Bridge(spark)
    return found


def encoded(directories: Sequence[Directory]) -> bytes:
    """Partitions as `directories` above reads them."""
    parts = [struct.pack(">i", len(directories))]
    for row, files in directories:
        each = [_file(*file) for file in files]
        parts.append(struct.pack(">ii", row, len(each)))
        parts += each
    return b"".join(parts)


def _file(path: str, size: int, modified: int) -> bytes:
    name = path.encode()
    return b"".join((struct.pack(">i", len(name)), name, struct.pack(">qq", size, modified)))
