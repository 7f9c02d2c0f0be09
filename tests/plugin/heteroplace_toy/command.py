"""The command `heteroplace count-tasks GRAPH`: a graph file -> the number of its tasks."""

from heteroplace.files.graph_file import load_graph


def add_commands(commands):
    parser = commands.add_parser("count-tasks", help="count the tasks of a graph file")
    parser.add_argument("graph", metavar="GRAPH")
    parser.set_defaults(run=count_tasks)


def count_tasks(arguments):
    print(len(load_graph(arguments.graph).graph.tasks))
