"""Problem + items -> a makespan that no plan beats, and recursive bounds over modules (DiviML)."""
